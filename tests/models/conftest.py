"""The device that the tests of the benchmarks drive, for the demo's times of operators."""

from tests.tools.fake_gpu import gpu
