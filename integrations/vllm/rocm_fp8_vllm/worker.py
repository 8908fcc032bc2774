"""What vLLM's `worker_extension_cls="rocm_fp8_vllm.worker.Counters"` adds to each worker, for `LLM.collective_rpc`."""

from .kernel import kernel

__all__ = ["Counters"]


class Counters:
    def rocm_fp8_call_counts(self) -> dict[str, int]:
        """Operator -> its calls in this worker so far: `kernel.call_counts()`."""
        return kernel.call_counts()
