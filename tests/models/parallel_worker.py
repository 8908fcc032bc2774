"""A rank of test_parallel.py, in a process of its own."""

import copy
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, Qwen3Config

from problems.buffers import same_bytes
from problems.mx_checkpoints import write
from problems.tiny_llama import decided, distance, drawn, kernelized, llama, logits, reference_logits
from problems.tiny_moe import moe
from tests.processes import run_cases


def qwen3(heads: int, kv_heads: int, head_dim: int = 16, inner: int = 128, hidden: int = 64) -> torch.nn.Module:
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=3,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        attention_bias=True,
    )
    return drawn(config, torch.Generator().manual_seed(torch.initial_seed())).eval()


def same_on_all_ranks(value: torch.Tensor) -> bool:
    everyone = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, value.contiguous())
    return all(same_bytes(each, value) for each in everyone)


def near(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Apart by the roundings of partial sums, and by what FP8 makes of those."""
    return distance(got, wanted) < 0.1


def assert_split(kernel, whole: torch.nn.Module, ids: torch.Tensor, is_near, what) -> torch.nn.Module:
    """The ranks' shares compute together what the whole model does, on the reference and on the kernels; and whoever
    looks at a hidden state sees the whole one. Returns this rank's share, whose communicator is closed."""
    share = copy.deepcopy(whole)
    with kernel.comm.Communicator(timeout=600) as c:
        before = reference_logits(kernel, whole, ids)
        assert kernel.quantization.parallelize(share, c) is share
        reference = reference_logits(kernel, share, ids)
        assert is_near(reference, before) and same_on_all_ranks(reference), what
        got = logits(kernelized(kernel, share), ids)
        assert is_near(got, before) and same_on_all_ranks(got), what
        states = share(ids, output_hidden_states=True).hidden_states
        assert all(same_on_all_ranks(state) for state in states), what
        if what[0] == "deepseek_v3":
            cache = kernel.quantization.latent_cache(share.config)
            steps = [share(part, past_key_values=cache).logits for part in ids.split((9, 1, 2), dim=1)]
            stepped = torch.cat(steps, dim=1)
            assert is_near(stepped, before) and same_on_all_ranks(stepped), what
    return share


def split(kernel, rank: int, ranks: int) -> None:
    """Each architecture, kinds of scales, heads of keys that are more than ranks and fewer; with biases."""
    generator = torch.Generator().manual_seed(torch.initial_seed())
    blocks = dict(heads=8, kv_heads=4, head_dim=64, inner=128 * 2 * ranks, hidden=128)
    cases = [
        ("llama", lambda: llama(generator, num_attention_heads=8, num_key_value_heads=4), dict(granularity="channel")),
        ("qwen3", lambda: qwen3(8, 4), dict(granularity="channel")),
        ("one head of keys", lambda: qwen3(8, 1), dict(granularity="tensor")),
        ("blocks", lambda: qwen3(**(blocks | dict(head_dim=128))), dict(granularity="block")),
    ]
    for name, make, options in cases:
        model = make()
        ids = torch.randint(0, 64, (2, 12))
        for activations in ("dynamic",) if options["granularity"] == "block" else ("static", "dynamic"):
            whole = copy.deepcopy(model)
            inputs = [ids] if activations == "static" else None
            kernel.quantization.quantize(whole, inputs, activations=activations, **options)
            share = assert_split(kernel, whole, ids, near, (name, activations))
            kept, all_of_it = (
                sum(buffer.nbytes for buffer in model.buffers() if buffer.dtype.itemsize == 1)
                for model in (share, whole)
            )
            assert kept < all_of_it / ranks * 1.35, (name, kept / all_of_it)


def mostly_near(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """As near, token by token: a rounded sum sends some tokens to other experts."""
    away = (got - wanted).float().norm(dim=-1) / wanted.float().norm(dim=-1)
    return (away < 0.2).float().mean().item() > 0.75


def split_experts(kernel, rank: int, ranks: int) -> None:
    """Mixtures: each architecture, kinds of scales; DeepSeek's attention, with both kinds of queries and caches."""
    generator = torch.Generator().manual_seed(torch.initial_seed())
    inner = dict(intermediate_size=256 * ranks)
    parts = dict(moe_intermediate_size=128 * ranks)
    heads = dict(num_attention_heads=8, num_key_value_heads=4, head_dim=128)
    latent = dict(
        num_attention_heads=8, num_key_value_heads=8, kv_lora_rank=512, qk_nope_head_dim=64, qk_rope_head_dim=64,
        v_head_dim=64,
    )  # fmt: skip
    cases = [
        ("mixtral", heads | inner, "block"),
        ("qwen3_moe", heads | inner | parts, "block"),
        ("qwen3_moe", heads | inner | parts, "channel"),
        ("qwen3_moe", heads | inner | parts, "mxfp4"),
        ("deepseek_v3", latent | inner | parts, "block"),
        ("deepseek_v3", latent | inner | parts | dict(q_lora_rank=None), "channel"),
    ]
    for name, sizes, granularity in cases:
        options = dict(experts="mxfp4") if granularity == "mxfp4" else dict(granularity=granularity)
        whole = kernel.quantization.quantize(moe(name, generator, **sizes), activations="dynamic", **options)
        share = assert_split(kernel, whole, torch.randint(0, 128, (2, 12)), mostly_near, (name, granularity))
        of_experts = [sum(b.nbytes for n, b in m.named_buffers() if "experts" in n) for m in (share, whole)]
        assert of_experts[0] <= of_experts[1] / ranks * 1.05, (name, of_experts)


def split_mx(kernel, rank: int, ranks: int) -> None:
    """Checkpoints with MX linears and experts: of each kind of codes and inputs; with biases, a latent attention."""
    generator = torch.Generator().manual_seed(torch.initial_seed())
    heads = dict(hidden_size=128, num_attention_heads=8, num_key_value_heads=4, intermediate_size=32 * ranks)
    biases = dict(attention_bias=True, mlp_bias=True)
    sizes = dict(intermediate_size=64 * ranks, moe_intermediate_size=32 * ranks)
    latent = dict(num_attention_heads=8, num_key_value_heads=8)
    cases = [
        ("MXFP4A16", llama(generator, **heads, **biases), near),
        ("W4A8, rows", llama(generator, **heads), near),
        ("MXFP8", llama(generator, **heads, **biases), near),
        ("MXFP8A16", moe("qwen3_moe", generator, **sizes, num_attention_heads=8, num_key_value_heads=4), mostly_near),
        ("W4A8", moe("deepseek_v3", generator, **sizes, **latent), mostly_near),
        ("MXFP4A16", moe("deepseek_v3", generator, **sizes, **latent, q_lora_rank=None), mostly_near),
    ]
    for form, model, is_near in cases:
        ids = torch.randint(0, 128, (2, 12))
        with tempfile.TemporaryDirectory() as folder:
            write(kernel, f"compressed-tensors, {form}", model, Path(folder))
            whole = kernel.quantization.load_quantized(folder)
        assert_split(kernel, whole, ids, is_near, (form,))


def decode(kernel, rank: int, ranks: int) -> None:
    """The byte-level Llama gives the tokens of one rank, where one token leads; from sum to FP8 is one operator."""
    model = AutoModelForCausalLM.from_pretrained("examples/byte_llama/checkpoint", dtype=torch.bfloat16).eval()
    with open("README.md", "rb") as text:
        ids = torch.tensor([list(text.read(400))])
    kernel.quantization.quantize(model, [ids])
    whole = kernelized(kernel, copy.deepcopy(model))
    wanted = logits(whole, ids)
    with kernel.comm.Communicator(timeout=600) as c:
        share = kernelized(kernel, kernel.quantization.parallelize(model, c))
        got = logits(share, ids)
        written = share.generate(ids[:, :64], max_new_tokens=24, do_sample=False)
        before = kernel.call_counts()
        share(ids[:, :1])
        now = kernel.call_counts()
        layers = share.config.num_hidden_layers
        share.config.num_hidden_layers = 3  # the first, the last and one between
        compiled = torch.compile(share.model, fullgraph=True, backend="aot_eager")
        assert same_bytes(compiled(ids[:, :8]).last_hidden_state, share.model(ids[:, :8]).last_hidden_state)
    assert same_on_all_ranks(written) and same_on_all_ranks(got)
    leads, same = decided(wanted, 0.5), got.argmax(-1) == wanted.argmax(-1)
    assert leads.float().mean() > 0.2 and same[leads].all() and same.float().mean() > 0.9
    counted = {name: now[name] - before[name] for name in now if "all_reduce" in name and now[name] > before[name]}
    # The first layer's input is not to be written, the last layer has no norm behind it.
    assert counted == {"all_reduce": 2, "all_reduce_add_rms_norm_fp8": 2 * layers - 2}


def decode_experts(kernel, rank: int, ranks: int) -> None:
    """The byte-level DeepSeek V3, whole windows and through a latent cache, in 16 bits and in FP8."""
    model = AutoModelForCausalLM.from_pretrained("examples/byte_deepseek/checkpoint", dtype=torch.bfloat16).eval()
    with open("tests/processes.py", "rb") as text:  # of the kind that it has learned
        ids = torch.tensor([list(text.read(240))])
    kernel.quantization.quantize(model, activations="dynamic")
    wanted = logits(kernelized(kernel, copy.deepcopy(model)), ids)
    leads = decided(wanted, 0.5)
    with kernel.comm.Communicator(timeout=600) as c:
        share = kernelized(kernel, kernel.quantization.parallelize(model, c))
        found = [logits(share, ids)]
        for fp8 in (False, True):
            cache = kernel.quantization.latent_cache(model.config, fp8=fp8)
            parts = [share(part, past_key_values=cache).logits for part in ids.split((100, 1, 8, 131), dim=1)]
            found.append(torch.cat(parts, dim=1))
    for got in found:
        same = got.argmax(-1) == wanted.argmax(-1)
        assert same_on_all_ranks(got) and leads.float().mean() > 0.2
        assert same[leads].float().mean() > 0.97 and same.float().mean() > 0.9


def refused(kernel, rank: int, ranks: int) -> None:
    def words(function) -> str:
        with pytest.raises(ValueError) as caught:
            function()
        return str(caught.value)

    with kernel.comm.Communicator(timeout=600) as c:
        parallelize = kernel.quantization.parallelize
        assert "no fused decoder layer" in words(lambda: parallelize(llama(torch.Generator()), c))
        uneven = kernel.quantization.quantize(qwen3(9, 3), activations="dynamic")
        before = {name: value.clone() for name, value in uneven.named_buffers()}
        assert "9 heads of queries, 3 of keys" in words(lambda: parallelize(uneven, c))
        assert all(value.shape == before[name].shape for name, value in uneven.named_buffers())
        odd = kernel.quantization.quantize(qwen3(8, 4, inner=127), activations="dynamic")
        assert "127 inner values" in words(lambda: parallelize(odd, c))
        blocks = kernel.quantization.quantize(
            qwen3(8, 4, head_dim=32, inner=512), activations="dynamic", granularity="block"
        )
        assert "hold no whole blocks of 128" in words(lambda: parallelize(blocks, c))
        generator = torch.Generator().manual_seed(0)
        experts = kernel.quantization.quantize(
            moe("qwen3_moe", generator, head_dim=128), activations="dynamic", granularity="block"
        )
        assert "experts: 128 inner values; 2 ranks need a multiple of 256" in words(lambda: parallelize(experts, c))
        latent = dict(num_attention_heads=3, num_key_value_heads=3)
        odd_heads = kernel.quantization.quantize(moe("deepseek_v3", generator, **latent), activations="dynamic")
        assert "3 heads; 2 ranks do not split them" in words(lambda: parallelize(odd_heads, c))
        plain = kernel.quantization.quantize(moe("deepseek_v3", generator), activations="dynamic")
        plain.model.layers[1].mlp.shared_experts = torch.nn.Identity()
        assert "shared_experts are not fused" in words(lambda: parallelize(plain, c))
        for sizes, why in (
            (dict(head_dim=8), "o_proj: a rank's 16 values hold no whole blocks of 32"),
            (dict(head_dim=16), "96 inner values; 2 ranks need a multiple of 64"),
        ):
            with tempfile.TemporaryDirectory() as folder:
                write(kernel, "compressed-tensors, MXFP4A16", llama(generator, **sizes), Path(folder))
                mx = kernel.quantization.load_quantized(folder)
            assert why in words(lambda: parallelize(mx, c))
        share = kernel.quantization.quantize(qwen3(8, 4), activations="dynamic")
        parallelize(share, c)
        assert "one rank's share already" in words(lambda: parallelize(share, c))
        assert "save it before parallelize" in words(lambda: kernel.quantization.save_quantized(share, "nowhere"))


def main() -> None:
    run_cases(globals())
