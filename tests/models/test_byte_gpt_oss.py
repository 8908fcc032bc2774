"""The byte-level gpt-oss: what its training does, what its checkpoint is, and its quality with MXFP4 experts."""

import copy
import json
from functools import cache

import pytest
import torch
from transformers import GptOssForCausalLM

from examples.byte_deepseek import train as mixture
from examples.byte_gpt_oss import train
from examples.byte_llama.train import make_loss
from examples.llama_fp8 import decoding, text
from problems import checkpoints
from problems.tiny_llama import kernelized

from .byte_mixtures import assert_one_mlp_is_the_experts, quality_of, streams, with_inputs

pytestmark = pytest.mark.usefixtures("fast_products")

CHECKPOINT = text.GPT_OSS.checkpoint
TINY = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=1, num_key_value_heads=1)


# --- training ---


def test_a_run_leaves_a_checkpoint_that_loads(tmp_path):
    given = ["--steps", "3", "--out", str(tmp_path / "made"), "--length", "32"]
    settings, _, dropout = mixture.parse_arguments(given, "gpt-oss", CHECKPOINT, has_dense=False)
    config = train.model_config(**TINY, max_position_embeddings=32)
    report = mixture.train(settings, config, streams(), dropout, train.as_one_mlp)
    model = GptOssForCausalLM.from_pretrained(tmp_path / "made")
    head, embedding = model.lm_head.weight, model.model.embed_tokens.weight
    assert head is not embedding and torch.equal(head, embedding)
    assert sum(p.numel() for p in model.parameters()) - head.numel() == report["parameters"]
    assert not model.config.output_router_logits
    assert [round(sum(shares), 3) for shares in report["expert_load"]] == [1, 1]


def test_the_loss_says_how_unevenly_experts_are_chosen():
    model = GptOssForCausalLM(train.model_config(**TINY)).eval()
    ids, nats = torch.randint(256, (2, 33)), {}
    for coefficient in (0.0, 1.0):
        model.config.router_aux_loss_coef = coefficient
        loss = make_loss(model, torch.device("cpu"), compiled=False, sample=())
        nats[coefficient] = loss(ids[:, :-1], ids[:, 1:])
    uneven = model(input_ids=ids[:, :-1], use_cache=False).aux_loss
    torch.testing.assert_close(nats[1.0] - nats[0.0], uneven)
    assert uneven > 0


def test_all_experts_as_one_mlp_are_the_experts():
    model = GptOssForCausalLM(train.model_config(**TINY))
    for parameter in model.parameters():
        if parameter.dim() < 3:
            torch.nn.init.normal_(parameter)  # biases, too
    assert_one_mlp_is_the_experts(model, train.as_one_mlp, 1e-4)


# --- the checkpoint ---


def test_the_checkpoint_is_small_and_its_experts_are_used():
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) < 9_000_000
    report = json.loads((CHECKPOINT / "training.json").read_text())
    for shares in report["expert_load"]:  # one of a layer's has none
        assert len(shares) == 8 and sorted(shares)[1] > 0.01 and max(shares) < 0.3


@pytest.fixture(scope="module")
def loaded(device):
    return text.load(text.GPT_OSS, device.type)


@pytest.fixture(scope="module")
def wanted(loaded) -> decoding.Quality:
    return quality_of(loaded.model, loaded)


# inputs -> (bits a byte, share of the likeliest next bytes) that MXFP4 experts may cost.
INPUTS = {"16bit": (0.01, 0.95), "fp8": (0.01, 0.95), "mxfp8": (0.01, 0.95), "mxfp4": (0.02, 0.92)}


@pytest.fixture(scope="module")
def quality(kernel, loaded):
    """quality(inputs), with experts in MXFP4."""
    model = kernel.quantization.quantize(copy.deepcopy(loaded.model), granularity=None, experts="mxfp4")
    return cache(lambda inputs: quality_of(kernelized(kernel, with_inputs(model, inputs)), loaded))


@pytest.mark.parametrize("inputs", INPUTS)
def test_experts_in_mxfp4_keep_the_quality(quality, wanted, inputs):
    got, (bits, share) = quality(inputs), INPUTS[inputs]
    # 1.14 of all held-out modules. Windows differ by .4: the mean of 32 by .3, from one Python's library to another's.
    assert wanted.bits_per_byte < 1.45
    assert abs(got.bits_per_byte - wanted.bits_per_byte) < bits
    assert decoding.share_of_equal(wanted, got) > share
    if inputs in ("fp8", "mxfp8"):
        assert abs(got.bits_per_byte - quality("16bit").bits_per_byte) < 0.003


def test_in_its_own_layout_it_computes_the_same(kernel, device, loaded, tmp_path):
    model = kernel.quantization.quantize(copy.deepcopy(loaded.model), granularity=None, experts="mxfp4")
    kernel.quantization.save_quantized(model, tmp_path / "made")
    assert "model.layers.0.mlp.experts.gate_up_proj_blocks" in checkpoints.stored(tmp_path / "made")
    back = kernel.quantization.load_quantized(tmp_path / "made").to(device)
    ids = text.held_out_windows(loaded.tokenizer, 128, 2).to(device)
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, back(input_ids=ids).logits)
