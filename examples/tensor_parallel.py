#!/usr/bin/env python3
"""One FP8 model on several ranks of one host: each has a share of every decoder layer.

    torchrun --nproc-per-node 2 -m examples.tensor_parallel                    # the byte-level Llama of this repository
    torchrun --nproc-per-node 2 -m examples.tensor_parallel --deepseek         # its DeepSeek V3, with a latent cache
    torchrun --nproc-per-node 2 -m examples.tensor_parallel --model PATH_OR_ID    # any model whose layers are fused

quantises the model, keeps each rank's share (kernel.quantization.parallelize), puts the kernels in, and continues the
prompt. The same model whole, on rank 0 alone, says whether it gives the same tokens. On a GPU rank r takes device r.
"""

import argparse
import copy
import logging
import os
import time

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", help="a checkpoint: a folder or a Hub id (default: the byte-level Llama)")
    which.add_argument("--deepseek", action="store_true", help="the byte-level DeepSeek V3 of this repository")
    parser.add_argument("--prompt", help="text to continue (default: part of a held-out module)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to decode (default: %(default)s)")
    parser.add_argument("--activations", choices=["static", "dynamic"], default="static")
    args = parser.parse_args()

    import kernels

    from examples.llama_fp8 import text
    from scripts.load import default_backend, load_kernel

    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    backend = default_backend()
    if backend == "cpu":
        device = "cpu"
        torch.set_num_threads(max(1, torch.get_num_threads() // ranks))
    else:
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group(
            "gloo" if device == "cpu" else "nccl", device_id=None if device == "cpu" else torch.device(device)
        )
    logging.getLogger("kernels").setLevel(logging.ERROR)
    kernel = load_kernel(backend)
    loaded = text.load(text.DEEPSEEK if args.deepseek else args.model, device)
    static = args.activations == "static"
    windows = text.calibration_windows(loaded.tokenizer, min(512, loaded.context), 8).split(1) if static else None
    kernel.quantization.quantize(loaded.model, windows, activations=args.activations)
    whole = copy.deepcopy(loaded.model) if rank == 0 else None

    prompt = text.default_prompt() if args.prompt is None else args.prompt
    ids = torch.tensor([loaded.tokenizer.encode(prompt)[-(loaded.context - args.tokens) :]], device=device)

    def decode(model: torch.nn.Module) -> tuple[torch.Tensor, float]:
        begun = time.perf_counter()
        with torch.inference_mode(), kernels.use_kernel_mapping(kernel.layers.mapping()):
            kernels.kernelize(model, mode=kernels.Mode.INFERENCE)
            latent = dict(past_key_values=kernel.quantization.latent_cache(model.config)) if args.deepseek else {}
            found = model.generate(ids, max_new_tokens=args.tokens, do_sample=False, **latent)
        return found[0, ids.shape[1] :], time.perf_counter() - begun

    with kernel.comm.Communicator() as communicator:
        tokens, took = decode(kernel.quantization.parallelize(loaded.model, communicator))
        communicator.check()
    if rank == 0:
        alone, _ = decode(whole)
        size = sum(b.nbytes for b in loaded.model.buffers()) / sum(b.nbytes for b in whole.buffers())
        print(f"{loaded.name} on {ranks} ranks ({backend}); {size:.0%} of its FP8 weights on each; {took:.1f} s")
        print(loaded.tokenizer.decode(tokens.tolist()))
        same = int((tokens == alone).long().cumprod(0).sum())
        print(f"\n{same} of {len(tokens)} tokens, from the first on, are those of one rank")
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
