"""The package's operators on the device at hand, as a user loads them."""
