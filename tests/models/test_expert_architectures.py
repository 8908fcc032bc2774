"""Every causal language model of transformers with experts: what save_quantized writes, transformers and load_quantized
read, or it refuses and says why. What chooses experts keeps its type."""

import re

import pytest
import torch
from transformers import AutoModelForCausalLM

from problems.buffers import same_bytes
from problems.checkpoints import assert_same_state, copied_state, in_16_bits, stored
from problems.expert_models import kinds, model
from problems.tiny_llama import distance, logits, tokens

pytestmark = [
    pytest.mark.usefixtures("without_gradients"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of what is not fused
]

STACKED = "hold experts stacked"
REFUSED = {
    "aria_text": STACKED,
    "gpt_oss": "hold MXFP4 beside 16 bits",
    "granitemoe": STACKED,
    "granitemoe_swa": STACKED,
    "granitemoehybrid": STACKED,
    "granitemoeshared": STACKED,
    "hy_v4": "keeps scales of a HYV4ForCausalLM in float32",
    "inkling_text": STACKED,
    "lara_mini": STACKED,
    "minimax_m3_vl_text": STACKED,
    "llama4_text": "puts other modules in its place",
    "zaya": STACKED,
}
# A tiny model's sizes, such as kv_b_proj's 192 rows with two scales.
SMALLER = "for one of smaller blocks"
# Of a weight of FP8 numbers, whose steps are 2^-3 to 2^-4 of them: a rounding error of 2^-5.3 of its norm at most where
# scales are those of rows. The scale is rounded to bfloat16, 2^-9.
ROUNDED = 2.0**-4.5


def quantised(kernel, original: torch.nn.Module, granularity: str) -> torch.nn.Module:
    return kernel.quantization.quantize(original, activations="dynamic", granularity=granularity)


def cut_off(tensors: dict[str, torch.Tensor]) -> bool:
    """Whether the sizes of a weight are no multiples of the number of its scales."""
    scales = {name: value for name, value in tensors.items() if name.endswith("_scale_inv")}
    weights = {name: tensors[name.removesuffix("_scale_inv")] for name in scales}
    return any(size % count for name in scales for size, count in zip(weights[name].shape, scales[name].shape))


@pytest.mark.parametrize("granularity", ["channel", "block"])
@pytest.mark.parametrize("kind", kinds())
def test_what_is_written_is_read(kernel, device, generator, tmp_path, kind, granularity):
    original, ids = model(kind, generator).to(device), tokens(generator, 2, 9, device)
    numbers = copied_state(original)
    made, folder = quantised(kernel, original, granularity), tmp_path / "fp8"
    try:
        kernel.quantization.save_quantized(made, folder)
    except ValueError as error:
        refused = REFUSED.get(kind, SMALLER if granularity == "block" else "nothing")
        assert refused in str(error)
        return
    # Aria had experts of another kind, which stay as they are, up to transformers 5.17.
    assert kind not in REFUSED or not any(hasattr(each, "gate_up_scale") for each in made.modules())

    loaded = kernel.quantization.load_quantized(folder, device)
    assert_same_state(loaded, made)
    assert same_bytes(logits(loaded, ids), logits(made, ids))

    if cut_off(stored(folder)):
        with pytest.raises(RuntimeError, match="CONVERSION"):  # blocks that are cut off: DeepSeek-V3's kv_a, too
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **in_16_bits(folder))
        return
    options = dict(dtype=torch.bfloat16, output_loading_info=True)
    theirs, seen = AutoModelForCausalLM.from_pretrained(folder, **options, **in_16_bits(folder))
    assert not seen["missing_keys"] and not seen["unexpected_keys"] and not seen["mismatched_keys"]
    if granularity == "block" and "compressed-tensors" in (folder / "config.json").read_text():
        with pytest.raises(RuntimeError):  # blocks that are cut off: loud
            logits(theirs.to(device), ids)
        return
    logits(theirs.to(device), ids)  # which makes compressed-tensors decompress
    found = theirs.state_dict()
    for name, value in numbers.items():
        assert torch.equal(found[name], value) or distance(found[name], value) <= ROUNDED, name


ROUTER = re.compile(r"(?:.*\.)?(?:router|router_gate|gate|shared_expert_gate)(?:\..*)?")


@pytest.mark.parametrize("kind", kinds())
def test_what_chooses_experts_keeps_its_type(kernel, generator, kind):
    """Whether it is a module of its own, a subclass of Linear or a Linear of any name."""
    original = model(kind, generator)
    scores = {name: value.clone() for name, value in original.named_parameters() if ROUTER.fullmatch(name)}
    made = quantised(kernel, original, "channel")
    assert scores
    state = made.state_dict()
    assert all(same_bytes(state[name], value) for name, value in scores.items())
