"""Tensor parallelism on one host: all-reduce and what follows it, between 1 to 8 ranks of torch.distributed."""

from .communicator import Communicator

__all__ = ["Communicator"]
