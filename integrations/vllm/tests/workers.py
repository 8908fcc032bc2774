"""What tests do inside a worker: a vLLM worker extension."""

import torch
from rocm_fp8_vllm import tensor_parallel
from rocm_fp8_vllm.worker import Counters


class Meddling(Counters):
    def _layers(self) -> torch.nn.ModuleList:
        return self.model_runner.get_model().model.layers

    def watch(self, layer: int, name: str) -> None:
        """A hook on a module, which counts the tensors that the module returns."""
        self.seen = seen = [0]

        def hook(module, inputs, output) -> None:
            output = output[0] if isinstance(output, tuple) else output
            seen[0] += type(output) is torch.Tensor

        self._layers()[layer].get_submodule(name).register_forward_hook(hook)

    def tensors_seen(self) -> int:
        """By the last hook."""
        return self.seen[0]

    def double(self, layer: int, name: str) -> None:
        """A forward that computes with the result of a module's own: 2 x / 2."""
        module = self._layers()[layer].get_submodule(name)
        whole = module.forward
        module.forward = lambda *inputs, **keywords: whole(*inputs, **keywords) * 2 / 2

    def sum_of_rows(self, rows: int, more_each: int) -> float:
        """The sum over workers of ones, of which each worker has more rows than the one before."""
        communicator = tensor_parallel.communicator()
        rows += more_each * communicator.rank
        result = tensor_parallel.operators.all_reduce(torch.ones(rows, 64, device=self.device))
        communicator.check()  # on a GPU the call itself has returned
        return result.mean().item()

    def alone(self) -> None:
        """vLLM asserts that sleep leaves no less of the GPU free: other processes' engines do not count here."""
        torch.accelerator.get_memory_info = lambda device=None: (0, 1)
