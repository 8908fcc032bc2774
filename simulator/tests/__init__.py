"""Tests of the simulator on snippets and small kernels. The shipped kernels run in tests/gpu."""
