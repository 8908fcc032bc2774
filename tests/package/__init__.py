"""Builds, the package's layout, the worked example, the choice of a backend."""
