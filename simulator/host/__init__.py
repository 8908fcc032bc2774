"""HIP's runtime as a test double: host code runs as it is. Above all other rooms but calibration."""
