"""What only GPUs have: launchers, configurations, the ROCm variant in the simulator; on a GPU, the kernels."""
