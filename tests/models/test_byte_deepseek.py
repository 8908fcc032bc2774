"""The byte-level DeepSeek V3: what its training does, what its checkpoint is, and its quality in FP8."""

import copy
import json

import pytest
import torch
from safetensors import safe_open
from transformers import DeepseekV3ForCausalLM

from examples.byte_deepseek import train
from examples.llama_fp8 import decoding, text
from problems.tiny_llama import kernelized

from .byte_mixtures import assert_one_mlp_is_the_experts, quality_of, streams, with_inputs

pytestmark = pytest.mark.usefixtures("fast_products")

CHECKPOINT = text.DEEPSEEK.checkpoint
TINY = dict(
    hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=1,
    num_key_value_heads=1, q_lora_rank=16, max_position_embeddings=32,
)  # fmt: skip


# --- training ---


def test_a_run_leaves_a_checkpoint_that_loads(tmp_path):
    given = ["--steps", "3", "--out", str(tmp_path / "made"), "--length", "32"]
    settings, dense, dropout = train.parse_arguments(given)
    assert (settings.steps, dense) == (3, False)
    report = train.train(settings, train.model_config(**TINY), streams(), dropout)
    model = DeepseekV3ForCausalLM.from_pretrained(tmp_path / "made")
    head, embedding = model.lm_head.weight, model.model.embed_tokens.weight
    trained = sum(p.numel() for p in model.parameters()) - head.numel()
    assert trained == report["parameters"] > report["active_parameters"]
    assert head is not embedding and torch.equal(head, embedding)
    stored = json.loads((tmp_path / "made" / "training.json").read_text())
    assert stored == report and len(report["expert_load"]) == 1 and sum(report["expert_load"][0]) == pytest.approx(1)
    # The bias has moved, by one step for each batch.
    bias = train.routers(model)[0].e_score_correction_bias
    assert 0 < bias.abs().max() < 4.1 * train.BIAS_STEP


def test_all_experts_as_one_mlp_are_the_experts():
    model = DeepseekV3ForCausalLM(train.model_config(**TINY))
    assert_one_mlp_is_the_experts(model, train.as_one_mlp, 1e-5)


def test_the_bias_rises_where_an_expert_had_too_few():
    model = DeepseekV3ForCausalLM(train.model_config(**TINY)).train()
    train.keep_experts_busy(model)
    router = train.routers(model)[0]
    with torch.no_grad():
        router.weight.zero_()
        router.e_score_correction_bias[3:5] = 1.0  # both are always chosen
    before = router.e_score_correction_bias.clone()
    x = torch.randn(1, 10, 32)
    assert set(router(x)[2].flatten().tolist()) == {3, 4}
    moved = (router.e_score_correction_bias - before) / train.BIAS_STEP
    assert moved.round().tolist() == [1, 1, 1, -1, -1, 1, 1, 1]
    router.eval()(x)
    assert torch.equal((router.e_score_correction_bias - before) / train.BIAS_STEP, moved)


def test_the_llama_beside_it_has_its_active_size():
    from transformers import LlamaForCausalLM

    sizes = [
        train.active_parameters(kind(config))
        for kind, config in ((DeepseekV3ForCausalLM, train.model_config()), (LlamaForCausalLM, train.dense_config()))
    ]
    assert abs(sizes[0] - sizes[1]) < 0.01 * sizes[0]


@pytest.mark.parametrize("wrong", [["--dense"], ["--length", "1"], ["--dropout", "1"], ["--steps", "0"]])
def test_arguments_that_make_no_sense(wrong, capsys):
    with pytest.raises(SystemExit):
        train.parse_arguments(wrong)
    assert wrong[0] in capsys.readouterr().err


# --- the checkpoint ---


def test_the_checkpoint_is_small_and_its_experts_are_used():
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) < 12_000_000
    report = json.loads((CHECKPOINT / "training.json").read_text())
    for shares in report["expert_load"]:
        assert len(shares) >= 8 and min(shares) > 0.3 / len(shares) and max(shares) < 2 / len(shares)


def test_the_checkpoint_says_what_published_ones_say():
    """vLLM asks for these, and transformers for none of them: a head of its own, how experts are chosen."""
    settings = json.loads((CHECKPOINT / "config.json").read_text())
    assert settings["topk_method"] == "noaux_tc" and settings["scoring_func"] == "sigmoid"
    assert settings["tie_word_embeddings"] is False
    with safe_open(CHECKPOINT / "model.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("lm_head.weight"), file.get_tensor("model.embed_tokens.weight"))


@pytest.fixture(scope="module")
def loaded(device):
    return text.load(text.DEEPSEEK, device.type)


@pytest.fixture(scope="module")
def held_out(loaded):
    return text.held_out_windows(loaded.tokenizer, loaded.context // 2, 32)


@pytest.fixture(scope="module")
def wanted(loaded) -> decoding.Quality:
    return quality_of(loaded.model, loaded)


SCALES = {
    # Some text, long rows of blanks for one, has values nine times the largest that calibration meets.
    "static": dict(granularity="channel", headroom=16),
    "dynamic": dict(granularity="channel", activations="dynamic"),
    "block": dict(granularity="block", activations="dynamic"),
}


@pytest.mark.parametrize("scales", SCALES)
def test_quality(kernel, device, formats, loaded, wanted, scales):
    """On modules held out from training: 0.005 bits a byte, 97 % of the likeliest next bytes."""
    inputs = text.calibration_windows(loaded.tokenizer, loaded.context, 8).split(1) if scales == "static" else None
    model = kernel.quantization.quantize(copy.deepcopy(loaded.model), inputs, **SCALES[scales])
    kernelized(kernel, model)
    got = quality_of(model, loaded)
    assert wanted.bits_per_byte < 1.5
    assert abs(got.bits_per_byte - wanted.bits_per_byte) < 0.005
    assert decoding.share_of_equal(wanted, got) > 0.97


# inputs -> (bits a byte, share of the likeliest next bytes) that MXFP4 experts may cost, linears in bfloat16.
MXFP4 = {"16bit": (0.005, 0.96), "mxfp8": (0.005, 0.96), "mxfp4": (0.02, 0.93)}


@pytest.mark.parametrize("inputs", MXFP4)
def test_experts_in_mxfp4_keep_the_quality(kernel, device, loaded, wanted, inputs):
    model = kernel.quantization.quantize(copy.deepcopy(loaded.model), granularity=None, experts="mxfp4")
    kernelized(kernel, with_inputs(model, inputs))
    got = quality_of(model, loaded)
    bits, share = MXFP4[inputs]
    assert abs(got.bits_per_byte - wanted.bits_per_byte) < bits
    assert decoding.share_of_equal(wanted, got) > share


@pytest.fixture(scope="module")
def in_blocks(kernel, loaded):
    model = kernel.quantization.quantize(copy.deepcopy(loaded.model), activations="dynamic", granularity="block")
    return kernelized(kernel, model)


def bits_of(logits: torch.Tensor, ids: torch.Tensor, half: int) -> torch.Tensor:
    """Of each byte of the second half."""
    scored = logits[:, half - 1 : -1].float().log_softmax(-1).gather(-1, ids[:, half:, None])
    return -scored / 0.6931471805599453


def test_decoding_with_a_latent_cache_is_teacher_forced_alike(kernel, device, in_blocks, held_out):
    """Byte after byte through mla_decode: the likelihood that whole windows have."""
    ids = held_out[::4, :256].to(device)
    half = ids.shape[1] // 2
    cache = kernel.quantization.latent_cache(in_blocks.config, ids.shape[1])
    with torch.no_grad():
        parts = [in_blocks(ids[:, :half], past_key_values=cache).logits]
        parts += [in_blocks(ids[:, n : n + 1], past_key_values=cache).logits for n in range(half, ids.shape[1])]
        whole = in_blocks(ids, use_cache=False).logits
    off = bits_of(torch.cat(parts, dim=1), ids, half) - bits_of(whole, ids, half)
    # .09 bits a byte (root mean square) by the order of sums; the mean by four deviations.
    assert off.square().mean() < 0.15**2 and abs(off.mean()) < 4 * 0.09 / off.numel() ** 0.5


def test_a_latent_cache_in_fp8_keeps_the_quality(kernel, device, in_blocks, held_out):
    """0.005 bits a byte, 97 % of the likeliest next bytes: of one in 16 bits, bytes behind it through mla_decode."""
    ids = held_out[::2].to(device)
    half, logits = ids.shape[1] // 2, []
    with torch.no_grad():
        for fp8 in (False, True):
            cache = kernel.quantization.latent_cache(in_blocks.config, ids.shape[1], fp8=fp8)
            parts = [in_blocks(part, past_key_values=cache).logits for part in (ids[:, :half], ids[:, half:])]
            logits.append(torch.cat(parts, dim=1))
    bits = [bits_of(each, ids, half).mean() for each in logits]
    equal = (logits[0][:, half:].argmax(-1) == logits[1][:, half:].argmax(-1)).float().mean().item()
    assert abs(bits[0] - bits[1]) < 0.005 and equal > 0.97
