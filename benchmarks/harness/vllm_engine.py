"""One vLLM engine in a process of its own, with random weights: its figures as one line of JSON.

    python -m benchmarks.harness.vllm_engine '{"model": DIR, "batches": [1, 8], "prompts": [512], ...}'

benchmarks/vllm_latency.py starts it. It prints "ready", waits for a line, prints its figures, and waits for the end of
its input. The engine's core is in this process, so that its steps can be timed one by one.
On a GPU a captured step is timed by events around its graph, too: with few layers the host takes longer than that.
"""

import json
import os
import statistics
import sys
import time

# What an engine reads when vLLM is imported: no process of its own, no telemetry, no sampler that is compiled later.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}

import torch

VOCABULARY = 30000  # tokens of prompts are below it
SEED = 0


@torch.no_grad()
def fill(model: torch.nn.Module) -> None:
    """Normal numbers, and codes, in place of vLLM's dummy ones, which are zeros in FP8 and MXFP4: a GPU's power, and so
    its speed, depends on them. Scales keep a linear's results about as large as its inputs."""
    torch.manual_seed(SEED)
    for name, parameter in model.named_parameters():
        data = parameter.data
        if data.dtype == torch.uint8:  # e2m1 codes, two a byte, and their e8m0 scales
            data.random_(118, 122) if "scale" in name else data.random_(256)
        elif data.dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.int8):
            flat = torch.as_strided(data, (data.numel(),), (1,), data.storage_offset())  # of any order of dimensions
            for part in flat.split(1 << 26):
                part.copy_(torch.randn(part.shape, device=part.device) * (40 if data.dtype == torch.int8 else 1))
        elif "input_scale" in name:
            data.fill_(0.02)
        elif "scale" in name and data.dtype == torch.float32:
            data.fill_(0.015)
        elif data.dim() == 1 and "norm" in name:
            data.fill_(1)
        elif data.dim() == 2 and data.is_floating_point() and data.element_size() == 2:
            for part in data.split(4096):
                part.normal_(0, data.shape[1] ** -0.5)


def fill_as_loaded() -> None:
    """Before vLLM prepares weights for its kernels: what it makes of them may be no parameter."""
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    theirs = DummyModelLoader.load_weights

    def load_weights(loader: DummyModelLoader, model: torch.nn.Module, model_config) -> None:
        theirs(loader, model, model_config)
        fill(model)

    DummyModelLoader.load_weights = load_weights


class Graphs:
    """Times of the graphs that are replayed, in milliseconds, by events around each."""

    def __init__(self):
        self._spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        replay, spans = torch.cuda.CUDAGraph.replay, self._spans

        def timed(graph: torch.cuda.CUDAGraph) -> None:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            replay(graph)
            last.record()
            spans.append((first, last))

        torch.cuda.CUDAGraph.replay = timed

    def taken(self) -> list[float]:
        torch.cuda.synchronize()
        times = [first.elapsed_time(last) for first, last in self._spans]
        self._spans.clear()
        return times


def steps(llm, batch: int, prompt: int, new: int) -> list[float]:
    """Milliseconds of each step that serves `batch` prompts of `prompt` tokens and decodes `new` after each."""
    from vllm import SamplingParams

    engine, generator = llm.llm_engine, torch.Generator().manual_seed(SEED)
    sampling = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False)
    for index in range(batch):
        ids = torch.randint(0, VOCABULARY, (prompt,), generator=generator).tolist()
        engine.add_request(f"{time.time()}-{index}", {"prompt_token_ids": ids}, sampling)
    times = []
    while engine.has_unfinished_requests():
        began = time.perf_counter()
        engine.step()
        times.append((time.perf_counter() - began) * 1e3)
    return times


def measure(asked: dict) -> dict:
    from vllm import LLM

    gpu, batches, prompts = torch.cuda.is_available(), asked["batches"], asked["prompts"]
    fill_as_loaded()
    began = time.perf_counter()
    arguments = dict(compilation_config=dict(cudagraph_capture_sizes=sorted(batches))) if gpu else {}
    if gpu:
        arguments |= dict(kv_cache_memory_bytes=asked["cache"] << 20)
    llm = LLM(
        model=asked["model"],
        dtype="bfloat16",
        load_format="dummy" if asked["random"] else "auto",
        skip_tokenizer_init=True,
        max_model_len=max([*prompts, 256]) + 64,
        max_num_batched_tokens=max([*prompts, *batches, 512 if not gpu else 8192]),
        max_num_seqs=max(batches),
        enable_prefix_caching=False,
        gpu_memory_utilization=0.1,  # this much must be free; how much keys and values take is said elsewhere
        disable_log_stats=True,
        **arguments | asked["arguments"],
    )
    found = dict(start=time.perf_counter() - began, step={}, graph={}, first={})
    graphs = Graphs() if gpu else None
    print("ready", flush=True)
    sys.stdin.readline()  # another engine may be timed now
    for batch in batches:
        steps(llm, batch, asked["context"], 4)
    for batch in batches:
        times, spans = [], []
        for _ in range(asked["repeats"]):
            if graphs:
                graphs.taken()
            # The first steps read the prompts, in the last ones sequences end.
            times += steps(llm, batch, asked["context"], asked["new"])[4:-2]
            spans += graphs.taken()[4:-2] if graphs else []
        found["step"][batch] = statistics.median(times)
        if spans:
            found["graph"][batch] = statistics.median(spans)
    for prompt in prompts:
        steps(llm, 1, prompt, 1)
        found["first"][prompt] = statistics.median(sum(steps(llm, 1, prompt, 1)) for _ in range(asked["repeats"] + 2))
    if gpu:
        found["memory"] = torch.cuda.max_memory_allocated() / 2**30
    return found


if __name__ == "__main__":
    print("figures:", json.dumps(measure(json.loads(sys.argv[1]))), flush=True)
    sys.stdin.read()  # until all are timed
    os._exit(0)  # vLLM's shutdown has nothing to add, and can wait
