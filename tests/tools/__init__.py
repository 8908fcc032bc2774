"""The benchmarks, the tuner and the simulator's command."""
