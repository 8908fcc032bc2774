"""MX linears of one input as one, in fused layers: the bits of the linears apart, what is stored, ranks, adapters."""

import copy
import functools
import importlib
import re
import warnings

import peft
import pytest
import safetensors.torch
import torch

from problems import checkpoints, mx_checkpoints
from problems.buffers import same_bytes
from problems.checkpoints import assert_same_state
from problems.inputs import FP8, short
from problems.mx import values
from problems.mx_checkpoints import CODES, FORMS, entering, write
from problems.tiny_llama import NEAR, distance, kernelized, llama, logits, tokens
from problems.tiny_moe import logits_with_one_routing, moe
from tests.models.test_latent_cache import ABSORBED, steps_of
from tests.models.test_latent_cache import SIZES as LATENT

pytestmark = pytest.mark.usefixtures("without_gradients", "open_norms")

# Of each kind of codes and inputs one.
KINDS = [f"compressed-tensors, {each}" for each in ("MXFP4A16", "MXFP4", "W4A8", "W4A8, rows", "MXFP8A16", "MXFP8")]
every_kind = pytest.mark.parametrize("form", KINDS)
BIASES = dict(num_key_value_heads=1, num_attention_heads=2, attention_bias=True, mlp_bias=True)
MODELS = {
    "llama": lambda generator: llama(generator, **BIASES),
    "qwen3_moe": lambda generator: moe("qwen3_moe", generator),
    "deepseek_v3": lambda generator: moe("deepseek_v3", generator),
    "deepseek_v3, q_proj": lambda generator: moe("deepseek_v3", generator, q_lora_rank=None),
}
ALIKE = ("k_proj", "gate_proj", "up_proj", "q_a_proj", "kv_a_proj_with_mqa")
JOINED = {"qkv_proj", "gate_up_proj", "q_kv_a_proj"}


def models(kernel, name: str):
    return importlib.import_module(f"{kernel.__name__}.models.{name}")


def mx_linears(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    return {name: module for name, module in model.named_modules() if type(module).__name__ == "MxLinear"}


def written_and_loaded(kernel, device, generator, tmp_path, form: str, name: str = "llama"):
    """(A loaded model on the kernels, the model that its files are of.)"""
    model = MODELS[name](generator)
    write(kernel, form, model, tmp_path / "made")
    loaded = kernel.quantization.load_quantized(tmp_path / "made", device)
    return kernelized(kernel, loaded), model


@pytest.fixture
def made(kernel, device, generator, tmp_path):
    """made(form, name): written_and_loaded."""
    return functools.partial(written_and_loaded, kernel, device, generator, tmp_path)


def in_parts(kernel, monkeypatch, directory, device) -> torch.nn.Module:
    """The checkpoint as a model of which no linear is joined."""
    with monkeypatch.context() as patch:
        patch.setattr(models(kernel, "fp8.planning"), "_why_not", lambda *_: "it is not wanted")
        with pytest.warns(UserWarning, match="it is not wanted"):
            return kernelized(kernel, kernel.quantization.load_quantized(directory, device))


# --- a linear ---


@every_kind
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=short)
def test_joined_linears_give_the_bits_of_those_apart(kernel, device, formats, generator, form, biased, dtype):
    """Rows of any number, parts of any number of columns; and each is its definition."""
    format, inputs = f"mxfp{FORMS[form].bits}", FORMS[form].inputs
    linear = models(kernel, "fp8.mx_linear").MxLinear
    k = 32 * int(torch.randint(1, 12, (), generator=generator))
    sizes = torch.randint(1, 150, (3,), generator=generator).tolist()
    parts, exact = [], []
    for n in sizes:
        codes, scale = CODES[format](kernel, torch.randn(n, k, generator=generator).bfloat16())
        bias = torch.randn(n, generator=generator).to(dtype) if biased else None
        exact.append((values(codes, scale), bias))
        given = codes, scale, bias
        parts.append(linear(*given, inputs=inputs, dtype=dtype).to(device))
    together = linear(
        torch.cat([part.weight for part in parts]),
        torch.cat([part.weight_scale.view(torch.uint8) for part in parts]).view(torch.float8_e8m0fnu),
        torch.cat([part.bias for part in parts]) if biased else None,
        inputs=inputs,
        dtype=dtype,
    )
    for each in (together, *parts):
        if kernel.fp8_dtype(device) == torch.float8_e4m3fnuz:
            each.to_fnuz_()
    for rows in (0, 1, 3, 17, 33, 70):
        x = torch.randn(2, rows, k, generator=generator).to(dtype)
        got = together(x.to(device))
        assert got.shape == (2, rows, sum(sizes)) and got.dtype == dtype
        for part, own, (weight, bias) in zip(parts, got.split(sizes, dim=-1), exact):
            assert same_bytes(own.contiguous(), part(x.to(device)))
            if rows and (inputs in ("16bit", "mxfp4") or formats[0] == FP8[0]):
                wanted = entering(kernel, inputs, x.flatten(0, 1)) @ weight.T + (0 if bias is None else bias.double())
                assert distance(own.flatten(0, 1).cpu(), wanted) <= 2.0**-8  # one rounding to the result's dtype


@pytest.mark.parametrize("form", [form for form in KINDS if FORMS[form].inputs in ("fp8", "mxfp8")])
def test_an_input_that_comes_quantised(kernel, device, generator, made, form):
    linear = next(iter(mx_linears(made(form)[0]).values()))
    x = torch.randn(3, 5, linear.in_features, generator=generator).bfloat16().to(device)
    codes, scale = kernel.quantize_fp8(x, **linear.input_scaling(), out_dtype=linear.input_dtype)
    assert same_bytes(linear(codes, scale=scale), linear(x))
    with pytest.raises(ValueError, match="scale: None; this linear has no input_scale"):
        linear(codes)


@pytest.mark.parametrize("word", ["MXFP8", "row", None])
def test_inputs_by_another_word_are_refused(device, generator, made, word):
    linear = next(iter(mx_linears(made("compressed-tensors, MXFP4A16")[0]).values()))
    linear.inputs = word
    with pytest.raises(ValueError, match=rf"inputs: {word!r}; needs one of 16bit, fp8, mxfp4, mxfp8"):
        linear(torch.randn(3, linear.in_features, generator=generator).bfloat16().to(device))


# --- a model ---


@every_kind
@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_the_bits_of_its_linears_apart(
    kernel, device, generator, monkeypatch, recwarn, tmp_path, made, form, name
):
    """Norms hand on what the linears would quantise themselves, and residuals are added in the same order."""
    fused, ids = made(form, name)[0], tokens(generator, 2, 11, device)
    assert not [each for each in recwarn if issubclass(each.category, UserWarning)]
    apart = in_parts(kernel, monkeypatch, tmp_path / "made", device)
    for model, alone in ((fused, False), (apart, True)):
        last = {each.rpartition(".")[2] for each in mx_linears(model)}
        assert bool(last & JOINED) == (not alone) and bool(last & set(ALIKE)) == alone
    wanted, got = logits_with_one_routing([apart, fused], ids)
    # silu differs in its last place between torch and the operator that quantises behind it.
    assert distance(got, wanted) <= NEAR
    if FORMS[form].inputs in ("fp8", "mxfp8"):
        for layer in fused.model.layers:
            for module in layer.mlp.modules():
                if hasattr(module, "down_proj") and hasattr(module, "joined_of"):
                    module.down_proj.register_forward_pre_hook(lambda *_: None)  # watched: it is given 16 bits
        wanted, got = logits_with_one_routing([apart, fused], ids)
    assert same_bytes(got, wanted)


def test_an_input_is_quantised_once(kernel, device, generator, made, calls):
    model = made("compressed-tensors, MXFP8")[0]
    calls.clear()
    logits(model, tokens(generator, 2, 7, device))
    gemm, norm = "block_scaled_gemm", "add_rms_norm_dynamic_fp8"
    layer = [gemm, "quantize_fp8", gemm, norm, gemm, "swiglu_dynamic_fp8", gemm]
    assert calls == ["rms_norm_dynamic_fp8", *layer, norm, *layer, "rms_norm"]
    model = made("compressed-tensors, MXFP4")[0]
    calls.clear()
    logits(model, tokens(generator, 2, 7, device))
    assert calls == ["rms_norm", *["quantize_mxfp4", gemm] * 2] + ["rms_norm", *["quantize_mxfp4", gemm] * 2] * 3 + [
        "rms_norm"
    ]


@pytest.mark.parametrize("form", ["compressed-tensors, MXFP8A16", "quark, MXFP8", "quark, W4A16"])
def test_decode_steps_through_a_latent_cache(kernel, device, generator, tmp_path, form):
    """kv_b is absorbed: its numbers are those that its codes stand for."""
    model = moe("deepseek_v3", generator, **LATENT)
    write(kernel, form, model, tmp_path / "made")
    loaded = kernelized(kernel, kernel.quantization.load_quantized(tmp_path / "made", device))
    by_heads, ids = copy.deepcopy(loaded), tokens(generator, 2, 24, device)
    for layer in by_heads.model.layers:
        weight = layer.self_attn.kv_b_proj.dequantized()
        layer.self_attn.kv_b_proj.forward = lambda x, weight=weight: torch.nn.functional.linear(x, weight)
    got = steps_of(loaded, ids, (19, 1, 1, 3), kernel.quantization.latent_cache(loaded.config))
    assert distance(got, logits(by_heads, ids)) <= ABSORBED


# --- stored ---


@every_kind
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_has_the_tensors_that_it_was_loaded_from(
    kernel, device, formats, generator, tmp_path, made, form, name
):
    """Joined linears are split again; and what is loaded again is the same model."""
    loaded, _ = made(form, name)
    if FP8[0] not in formats and FORMS[form].bits == 8:
        pytest.skip("not this device's FP8 format")
    kernel.quantization.save_quantized(loaded, tmp_path / "again")
    first, again = (checkpoints.stored(tmp_path / each) for each in ("made", "again"))
    assert first.keys() == again.keys() and all(same_bytes(value, again[key]) for key, value in first.items())
    ids = tokens(generator, 2, 7, device)
    other = kernelized(kernel, kernel.quantization.load_quantized(tmp_path / "again", device))
    assert_same_state(other, loaded)
    assert same_bytes(logits(other, ids), logits(loaded, ids))


MIXED = {  # what has which codes -> what of it is joined, and the warning
    "by halves": (dict(self_attn="MXFP4A16", mlp="MXFP8"), {"qkv_proj", "gate_up_proj"}, None),
    "by inputs": (
        dict(qkv="MXFP8A16", o_proj="MXFP4", gate_up="W4A8", down_proj="MXFP8"),
        {"qkv_proj", "gate_up_proj"},
        None,
    ),
    "codes differ": (
        dict(q_proj="MXFP4A16", k_proj="MXFP8A16", v_proj="MXFP8A16", o_proj="MXFP4A16", mlp="MXFP8A16"),
        {"gate_up_proj"},
        "self_attn .* not fused, because q_proj, k_proj, v_proj, or their inputs, are quantised in different ways",
    ),
    "inputs differ": (
        dict(self_attn="MXFP4", gate_proj="W4A8", up_proj="MXFP4", down_proj="MXFP4"),
        {"qkv_proj"},
        "mlp .* not fused, because gate_proj, up_proj, or their inputs, are quantised in different ways",
    ),
}
WITHIN = dict(qkv="[qkv]_proj", gate_up="(?:gate|up)_proj")


@pytest.mark.parametrize("case", MIXED)
def test_linears_that_differ(kernel, device, formats, generator, tmp_path, case):
    """Joined are those of one format and one kind of inputs. Files come back byte for byte."""
    kinds, joined, why = MIXED[case]
    model, ids = MODELS["llama"](generator), tokens(generator, 2, 9, device)
    groups, tensors = {}, {}
    for part, kind in kinds.items():
        form = f"compressed-tensors, {kind}"
        pattern = rf".*\b{WITHIN.get(part, part)}\b.*"
        (group,) = FORMS[form].settings(())["config_groups"].values()
        groups[part] = group | dict(targets=[f"re:{pattern}"])
        _, stored = mx_checkpoints.quantised(kernel, form, model)
        tensors |= {key: value for key, value in stored.items() if re.fullmatch(pattern, key)}
        rest = {key: value for key, value in stored.items() if "_proj" not in key}
    directory = tmp_path / "made"
    directory.mkdir()
    safetensors.torch.save_file(tensors | rest, directory / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(directory)
    settings = dict(quant_method="compressed-tensors", format="mixed-precision", config_groups=groups)
    checkpoints.configure(directory, settings | dict(ignore=["lm_head"]), architectures=[type(model).__name__])
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        loaded = kernelized(kernel, kernel.quantization.load_quantized(directory, device))
    messages = [str(each.message) for each in found if issubclass(each.category, UserWarning)]
    assert [bool(re.search(why, each)) for each in messages] == [True] if why else not messages
    assert {each.rpartition(".")[2] for each in mx_linears(loaded)} & JOINED == joined
    kernel.quantization.save_quantized(loaded, tmp_path / "again")
    again = checkpoints.stored(tmp_path / "again")
    assert all(same_bytes(value, again[key]) for key, value in (tensors | rest).items()) or formats[0] != FP8[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = kernelized(kernel, kernel.quantization.load_quantized(tmp_path / "again", device))
    assert same_bytes(logits(other, ids), logits(loaded, ids))


# --- shares of ranks ---


@every_kind
@pytest.mark.parametrize("ranks", [2, 4])
def test_shares_of_ranks(kernel, device, generator, tmp_path, form, ranks):
    """Rows give the bytes of the whole's, columns sums that add up. A bias that is added to sums counts once."""
    sizes = dict(hidden_size=256, intermediate_size=256, num_attention_heads=8, num_key_value_heads=4)
    write(kernel, form, llama(generator, **BIASES | sizes), tmp_path / "made")
    whole = kernel.quantization.load_quantized(tmp_path / "made", device).model.layers[0]
    x = torch.randn(5, 256, generator=generator).bfloat16().to(device)
    sums = dict.fromkeys(("self_attn.o_proj", "mlp.down_proj"), 0.0)
    for rank in range(ranks):
        share = copy.deepcopy(whole)
        models(kernel, "fp8.parallel")._keep_share(share, rank, ranks)
        for name in ("self_attn.qkv_proj", "mlp.gate_up_proj"):
            rows = whole.get_submodule(name.partition(".")[0]).rows_of_parts(name.partition(".")[2])
            wanted = [part.chunk(ranks, -1)[rank] for part in whole.get_submodule(name)(x).split(rows, -1)]
            assert same_bytes(share.get_submodule(name)(x), torch.cat(wanted, -1))
        for name in sums:
            linear, own = whole.get_submodule(name), share.get_submodule(name)
            assert same_bytes(own.dequantized(), linear.dequantized().chunk(ranks, 1)[rank].contiguous())
            assert own.in_features == 256 // ranks and (own.bias is None) == (rank > 0)
            sums[name] = sums[name] + own(x.chunk(ranks, -1)[rank].contiguous()).float()
    for name, total in sums.items():
        # A row's scale is that of a share.
        near = 2.0**-4 if FORMS[form].inputs == "fp8" else 2.0**-7
        assert distance(total, whole.get_submodule(name)(x)) <= near


# --- adapters ---


@pytest.mark.parametrize("kind", ["fp8", "mx"])
@pytest.mark.parametrize("targets", ["q_proj", "k_proj,lm_head", "o_proj", "up_proj,embed_tokens", "down_proj,lm_head"])
def test_adapters_of_quantised_linears_are_refused(kernel, device, generator, made, kind, targets):
    """Of joined ones, too: they would be left out where another linear is adapted."""
    if kind == "mx":
        model = made("compressed-tensors, MXFP4A16")[0]
    else:
        model = kernel.quantization.quantize(llama(generator, device=device), activations="dynamic")
    with pytest.raises(ValueError, match=r"Target module (JoinedPart|MxLinear|Fp8Linear)\(.* is not supported"):
        peft.get_peft_model(model, peft.LoraConfig(target_modules=targets.split(","), r=4))


def test_adapters_of_linears_alone_are_refused(kernel, device, generator, tmp_path):
    model = llama(generator, hidden_act="gelu")
    write(kernel, "compressed-tensors, MXFP4A16", model, tmp_path / "made")
    with pytest.warns(UserWarning, match="hidden_act is 'gelu'"):
        loaded = kernel.quantization.load_quantized(tmp_path / "made", device)
    with pytest.raises(ValueError, match=r"Target module MxLinear\(.* is not supported"):
        peft.get_peft_model(loaded, peft.LoraConfig(target_modules=["gate_proj"], r=4))


def test_an_adapter_of_the_rest(kernel, device, generator, tmp_path, made):
    """It adds what it is; and is merged before the model is stored."""
    model, ids = made("compressed-tensors, MXFP4")[0], tokens(generator, 2, 9, device)
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    head = model.lm_head.weight.double()
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["lm_head"], r=4, lora_alpha=4))
    a, b = (torch.randn(shape, generator=generator).to(device) / 4 for shape in ((4, 64), (128, 4)))
    adapted.base_model.model.lm_head.lora_A.default.weight.copy_(a)
    adapted.base_model.model.lm_head.lora_B.default.weight.copy_(b)
    wanted = hidden.double() @ (head + b.double() @ a.double()).T
    assert distance(logits(adapted, ids), wanted) <= 2.0**-6 < distance(hidden.double() @ head.T, wanted)
    with pytest.raises(ValueError, match="lm_head has an adapter that is not merged"):
        kernel.quantization.save_quantized(adapted, tmp_path / "there")
    merged = adapted.merge_and_unload()
    kernel.quantization.save_quantized(merged, tmp_path / "there")
    loaded = kernelized(kernel, kernel.quantization.load_quantized(tmp_path / "there", device))
    assert same_bytes(logits(loaded, ids), logits(merged, ids))
