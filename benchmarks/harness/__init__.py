"""What the benchmarks share; nothing in here is a command."""
