"""A Hub on this machine's loopback device: as much of the HTTP API as huggingface_hub and kernels use for a kernel
repository. Real clients reach it through HF_ENDPOINT. `python -m tests.hub` starts one by hand."""
