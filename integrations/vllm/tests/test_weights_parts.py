"""What parameters take from files, beside an engine."""

import re
from types import SimpleNamespace

import pytest
import torch
from rocm_fp8_vllm import weights
from vllm.model_executor import parameter
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization.utils import fp8_utils
from vllm.model_executor.model_loader import ModelExpressModelLoader, TensorizerLoader
from vllm.model_executor.model_loader.weight_cache.ipc_loader import IpcModelLoader

from .test_heads import Model

pytestmark = pytest.mark.usefixtures("one_worker")
LACKS = "^{}: holds NaN, or the checkpoint lacks a part of it"
NEGATIVE = "^{}: holds NaN, infinity or negative numbers in the checkpoint"
FP8_SCALES = {
    "tensor": parameter.PerTensorScaleParameter,
    "channel": parameter.ChannelQuantScaleParameter,
    "block": parameter.BlockQuantScaleParameter,
}


def copies(param: torch.Tensor, given: torch.Tensor, **of_experts) -> None:
    param.data[tuple(slice(size) for size in given.shape)] = given


def made(kind: type[torch.nn.Module], **values: torch.Tensor) -> torch.nn.Module:
    """One of vLLM's modules, with parameters alone, that are loaded by copies."""
    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    for name, each in values.items():
        param = each if isinstance(each, torch.nn.Parameter) else torch.nn.Parameter(each, requires_grad=False)
        param.weight_loader = copies
        module.register_parameter(name, param)
    return module


def linear(rows: int, columns: int, **values: torch.Tensor) -> torch.nn.Module:
    layer = made(LinearBase, **values)
    layer.output_size, layer.input_size, layer.output_partition_sizes, layer.tp_size = rows, columns, [rows], 1
    return layer


def experts(method: str, padded: bool, **values: torch.Tensor) -> torch.nn.Module:
    """Of 64 numbers, with an inner size of 32, which may be padded to 64."""
    layer = made(RoutedExperts, **values)
    layer.quant_config, layer.quant_method = SimpleNamespace(get_name=lambda: method), None
    sizes = dict(hidden_dim=64, hidden_dim_unpadded=64, intermediate_size_per_partition_unpadded=32)
    sizes |= dict(tp_size=1, tp_rank=0, intermediate_size=32)
    sizes |= dict(intermediate_size_per_partition=64 if padded else 32)
    layer.moe_config = SimpleNamespace(is_act_and_mul=True, **sizes)
    return layer


def load(layer: torch.nn.Module, name: str, given: torch.Tensor, *arguments, **keywords) -> None:
    param = layer.get_parameter(name)
    param.weight_loader(param, given, *arguments, **keywords)


# --- scales ---


@pytest.mark.parametrize("own", [torch.uint8, torch.float8_e8m0fnu], ids=str)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu, torch.bfloat16, torch.float32], ids=str)
def test_mx_scales_of_any_type_are_the_same_bytes(own, dtype, generator):
    scale_bytes = torch.randint(90, 160, (8, 3), generator=generator).byte()
    layer = linear(8, 96, weight_scale=torch.zeros(8, 3, dtype=torch.uint8).view(own))
    weights.mark(layer, made_up=False)
    exponents = scale_bytes.view(torch.float8_e8m0fnu)
    given = {torch.uint8: scale_bytes, torch.float8_e8m0fnu: exponents}.get(dtype, exponents.float().to(dtype))
    load(layer, "weight_scale", given)
    assert torch.equal(layer.weight_scale.data.view(torch.uint8), scale_bytes)
    weights.check(layer)


def test_mx_scales_that_are_no_exponents_or_in_no_file_are_refused():
    layer = linear(8, 96, weight_scale=torch.zeros(8, 3, dtype=torch.uint8))
    weights.mark(layer, made_up=False)
    for wrong in (3.0, 0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"^weight_scale: torch\.float32, with other numbers than powers of two"):
            load(layer, "weight_scale", torch.full((8, 3), wrong))
    with pytest.raises(ValueError, match=LACKS.format("weight_scale")):
        weights.check(layer)
    given = torch.full((8, 3), 127, dtype=torch.uint8)
    given[3, 1] = 255
    with pytest.raises(ValueError, match=NEGATIVE.format("weight_scale")):
        load(layer, "weight_scale", given)
    load(layer, "weight_scale", torch.full((8, 3), 127, dtype=torch.uint8))
    weights.check(layer)


def test_what_is_made_up_or_of_other_modules_is_left_alone():
    model = torch.nn.Module()
    model.layer = linear(8, 96, weight_scale=torch.full((8, 3), 255, dtype=torch.uint8))
    model.weight_scale = torch.nn.Parameter(torch.zeros(8))
    weights.mark(model, made_up=True)
    weights.check(model)
    weights.mark(model, made_up=False)
    assert not model.weight_scale.any()
    load(model, "weight_scale", torch.full((8,), -1.0))
    load(model, "layer.weight_scale", torch.full((8, 3), 0.25))
    assert (model.weight_scale == -1).all() and (model.layer.weight_scale == 125).all()
    weights.check(model)


@pytest.mark.parametrize("strategy", ["tensor", "channel", "block"])
def test_scales_of_fp8_are_numbers_and_all_there(strategy):
    """Of three joined parts, as vLLM's schemes make them."""
    parts = [128] * 3
    values = dict(weight=torch.ones(384, 128).to(torch.float8_e4m3fn))
    scale = "weight_scale_inv" if strategy == "block" else "weight_scale"
    values[scale] = fp8_utils.create_fp8_scale_parameter(FP8_SCALES[strategy], parts, 128, [128, 128], copies)
    if strategy == "tensor":
        values["input_scale"] = fp8_utils.create_fp8_input_scale(parts, copies)
    model = torch.nn.Module()
    model.mlp = layer = linear(384, 128, **values)
    weights.mark(model, made_up=False)
    for name in values:
        with pytest.raises(ValueError, match=LACKS.format(rf"mlp\.{name}")):
            weights.check(model)
        own = layer.get_parameter(name)
        if name != "weight":
            for wrong in (-0.5, float("nan"), float("inf")):
                with pytest.raises(ValueError, match=NEGATIVE.format(rf"mlp\.{name}")):
                    load(layer, name, torch.full(own.shape, wrong))
            for dtype in (torch.uint8, torch.float8_e4m3fn):
                with pytest.raises(ValueError, match=rf"^mlp\.{name}: torch.float32 by the settings, {dtype}"):
                    load(layer, name, torch.ones(own.shape).to(dtype))
            own.data[:1] = 0.5
            with pytest.raises(ValueError, match=LACKS.format(rf"mlp\.{name}")):  # a part is not the whole
                weights.check(model)
        load(layer, name, torch.ones(own.shape).to(own.dtype))
    weights.check(model)


# --- what is there ---


def test_an_embedding_that_a_draft_is_given_is_left_alone(monkeypatch):
    model = Model(monkeypatch)
    weights.mark(model, made_up=False, drafts=True)
    weights.check(model)
    assert (model.embedding.weight == 1).all() and (model.lm_head.weight == 1).all()
    weights.mark(model, made_up=False)
    with pytest.raises(ValueError, match=LACKS.format("embedding.weight")):
        weights.check(model)
    model.load(model.embedding)
    weights.check(model)


def test_a_quantised_head_is_missed(monkeypatch):
    """But for a draft, which is given one. Heads that are not quantised are for `heads`."""
    model = Model(monkeypatch)
    head = model.lm_head
    head.weight.data = head.weight.data.to(torch.float8_e4m3fn)
    head.register_parameter("weight_scale", torch.nn.Parameter(torch.ones(1)))
    model.load(model.embedding)
    weights.mark(model, made_up=False, drafts=True)
    weights.check(model)
    weights.mark(model, made_up=False)
    model.load(model.embedding)
    for name, given in (("weight", torch.ones(100, 8).to(torch.float8_e4m3fn)), ("weight_scale", torch.ones(1))):
        with pytest.raises(ValueError, match=LACKS.format(f"lm_head.{name}")):
            weights.check(model)
        load(head, name, given)
    with pytest.raises(ValueError, match=NEGATIVE.format("lm_head.weight_scale")):
        load(head, "weight_scale", torch.full((1,), -1.0))
    weights.check(model)


def test_more_than_the_settings_ask_for_is_refused():
    """vLLM cuts off what is too many."""
    values = dict(weight=torch.ones(300, 256).to(torch.float8_e4m3fn), weight_scale_inv=torch.ones(3, 2))
    layer = linear(300, 256, **values)
    layer.weight_block_size = [128, 128]
    weights.mark(layer, made_up=False)
    for name, own in values.items():
        for axis in (0, 1):
            more = torch.ones([size + (place == axis) for place, size in enumerate(own.shape)]).to(own.dtype)
            sizes = re.escape(f"{list(own.shape)} by the settings, {list(more.shape)}")
            with pytest.raises(ValueError, match=f"^{name}: {sizes} in the checkpoint"):
                load(layer, name, more)
        load(layer, name, torch.ones(own.shape).to(own.dtype))
    weights.check(layer)


def test_an_error_of_a_loader_names_the_tensor():
    layer = linear(8, 32, weight=torch.zeros(8, 32))
    weights.mark(layer, made_up=False)
    with pytest.raises(ValueError, match=r"^weight: \[3, 32, 32\] in the checkpoint does not fit: "):
        load(layer, "weight", torch.zeros(3, 32, 32))


class Reading(torch.nn.Module):
    """A model with a norm, which a loader fills by names."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8, bias=False)

    def load_weights(self, given) -> set[str]:
        return {name for name, values in given if self.get_parameter(name).data.copy_(values) is not None}


def config(runner: str = "generate", quantization: str | None = "fp8") -> SimpleNamespace:
    nothing = SimpleNamespace()  # no settings
    return SimpleNamespace(quantization=quantization, runner_type=runner, hf_config=nothing, hf_text_config=nothing)


def test_files_in_a_kernels_layout_are_refused():
    weights._mark(Reading(), config(), "safetensors")
    with pytest.raises(ValueError, match="^load_format sharded_state: not for fp8"):
        weights._mark(Reading(), config(), "sharded_state")
    weights._mark(Reading(), config(quantization=None), "sharded_state")


@pytest.mark.parametrize("runner", ["generate", "draft"])
def test_a_norm_is_missed_whatever_loads(runner):
    """Of a draft, too. vLLM has a check of the default loader alone."""
    model = Reading()
    weights._mark(model, config(runner), "runai_streamer")
    model.load_weights([])
    with pytest.raises(ValueError, match="weights were not initialized from checkpoint: {'norm.weight'}"):
        weights.check(model)
    weights._mark(model, config(runner), "runai_streamer")
    model.load_weights([("norm.weight", torch.ones(8))])
    weights.check(model)
    assert not {"load_weights", "rocm_fp8_filled"} & vars(model).keys()


@pytest.mark.parametrize("kind", [TensorizerLoader, IpcModelLoader, ModelExpressModelLoader])
def test_loaders_that_make_models_of_their_own_are_refused(kind):
    weights.install()
    loader = SimpleNamespace(load_config=SimpleNamespace(load_format="its own"))
    with pytest.raises(ValueError, match="^load_format its own: not for fp8. Load the checkpoint itself"):
        kind.load_model(loader, None, config())
    theirs = weights._refusing(lambda self, vllm_config, model_config: "made")
    assert theirs(loader, None, config(quantization=None)) == "made"


def test_a_zero_point_of_one_byte_is_missed():
    """No number of it is a mark."""
    layer = linear(4, 32, weight=torch.zeros(4, 32, dtype=torch.int8), input_zero_point=torch.zeros(1).to(torch.int8))
    weights.mark(layer, made_up=False)
    for name in ("weight", "input_zero_point"):
        with pytest.raises(ValueError, match=LACKS.format(name)):
            weights.check(layer)
        load(layer, name, torch.zeros_like(layer.get_parameter(name)))
    weights.check(layer)


def test_stacks_of_experts_with_padding_are_missed():
    """Which is to stay zero."""
    shapes = dict(w13_weight=(2, 128, 32), w13_bias=(2, 128), w2_weight_scale=(2, 64, 2))
    layer = experts("gpt_oss_mxfp4", True, **{name: torch.zeros(shape).byte() for name, shape in shapes.items()})
    weights.mark(layer, made_up=False)
    assert not any(each.any() for each in layer.parameters())
    of_files = dict(w13_weight=(2, 64, 32), w13_bias=(2, 64), w2_weight_scale=(2, 64, 1))
    for name, shape in of_files.items():
        with pytest.raises(ValueError, match=LACKS.format(name)):
            weights.check(layer)
        part = dict(weight_name=name, shard_id=None, expert_id=None)
        for axis, size in enumerate(shape):  # vLLM copies one expert into all, and leaves what is behind
            wrong = list(shape)
            wrong[axis] = size // 2
            with pytest.raises(ValueError, match=rf"^{name}: {re.escape(str(list(shape)))} by the settings, \["):
                load(layer, name, torch.zeros(wrong).byte(), **part)
        load(layer, name, torch.zeros(shape).byte(), **part)
    weights.check(layer)


@pytest.mark.parametrize("worker, rows", [(0, 64), (1, 32)])
def test_of_a_stack_a_worker_is_given_whole_blocks(worker, rows):
    """What is too short would leave its last rows zeros, as padding is."""
    layer = experts("gpt_oss_mxfp4", True, w13_weight=torch.zeros(2, 128, 32).byte(), w13_bias=torch.zeros(2, 128))
    layer.moe_config.tp_size, layer.moe_config.tp_rank, layer.moe_config.intermediate_size = 2, worker, 96
    weights.mark(layer, made_up=False)
    of_files = dict(w13_weight=torch.zeros(2, 2 * rows, 32).byte(), w13_bias=torch.zeros(2, 2 * rows))
    for name, given in of_files.items():
        part = dict(weight_name=name, shard_id=None, expert_id=None)
        for wrong in (given[:, 1:], given[:, :1], given[:1], given[..., 1:]):
            with pytest.raises(ValueError, match=f"^{name}: .* by the settings, "):
                load(layer, name, wrong, **part)
        load(layer, name, given, **part)
    weights.check(layer)
    nan = of_files["w13_bias"].clone()
    nan[1, -1] = float("nan")
    with pytest.raises(ValueError, match="^w13_bias: holds NaN in the checkpoint"):
        load(layer, "w13_bias", nan, weight_name="w13_bias", shard_id=None, expert_id=None)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("missing", [("w1", 0), ("w3", 1), ("w2", 1)], ids=str)
def test_a_matrix_of_an_expert_is_missed(padded, missing):
    """Beside padding, too."""
    inner = 64 if padded else 32
    shapes = dict(w13_weight=(2, 2 * inner, 32), w2_weight=(2, 64, inner // 2))
    layer = experts("quark", padded, **{name: torch.zeros(shape).to(torch.uint8) for name, shape in shapes.items()})
    for param in layer.parameters():
        param.weight_loader = places(inner)
    weights.mark(layer, made_up=False)
    assert padded != any(bool(each.any()) for each in layer.parameters())

    def give(part: str, expert: int) -> None:
        name, shape = ("w2_weight", (64, 16)) if part == "w2" else ("w13_weight", (32, 32))
        load(layer, name, torch.zeros(shape).to(torch.uint8), name, shard_id=part, expert_id=expert)

    for each in [(part, expert) for part in ("w1", "w2", "w3") for expert in (0, 1)]:
        if each != missing:
            give(*each)
    with pytest.raises(ValueError, match=LACKS.format("w2_weight" if missing[0] == "w2" else "w13_weight")):
        weights.check(layer)
    give(*missing)
    weights.check(layer)


def places(inner: int):
    """As vLLM does it: gates before ups, what is padded behind each."""

    def loader(param, given, weight_name, shard_id, expert_id) -> bool:
        first = inner if shard_id == "w3" else 0
        param.data[expert_id, first : first + len(given), : given.shape[1]] = given
        return True

    return loader


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize(
    "name, columns, shapes",
    [
        ("w13_weight", 32, [(16, 32), (32, 16), (33, 32), (1, 32), ()]),
        ("w13_weight_scale", 2, [(32, 1), (16, 2), (1, 2), (32, 3), (64,), ()]),
    ],
)
def test_what_an_expert_has_in_another_shape_is_refused(name, columns, shapes, padded):
    """vLLM takes what is too small for a part that is padded, and copies a number into all."""
    layer = experts("quark", padded, **{name: torch.zeros(2, 128 if padded else 64, columns).byte()})
    weights.mark(layer, made_up=False)
    for shape in shapes:
        with pytest.raises(ValueError, match=rf"^{name}: \[32, {columns}\] by the settings, \["):
            load(layer, name, torch.full(shape, 127).byte(), name, "w1", 0)


@pytest.mark.parametrize("part, shape", [("w1", (64, 2)), ("w2", (64, 2))])
def test_two_workers_share_the_scales_of_an_expert(part, shape):
    """Each has one block of 32, of 64 rows and columns."""
    name, own = ("w13_weight_scale", (2, 64, 2)) if part == "w1" else ("w2_weight_scale", (2, 64, 1))
    layer = experts("quark", False, **{name: torch.zeros(own).byte()})
    layer.moe_config.tp_size, layer.moe_config.intermediate_size = 2, 64
    layer.get_parameter(name).weight_loader = lambda *given: True
    weights.mark(layer, made_up=False)
    with pytest.raises(ValueError, match=f"^{name}: .* by the settings, "):
        load(layer, name, torch.full((32, 1), 127).byte(), name, part, 0)
    load(layer, name, torch.full(shape, 127).byte(), name, part, 0)


@pytest.mark.parametrize("name, own", [("w2_weight", (2, 64, 16)), ("w2_weight_scale", (2, 64, 1))])
def test_an_expert_is_no_stack_of_one(name, own):
    """vLLM would copy it into all."""
    layer = experts("quark", False, **{name: torch.zeros(own).byte()})
    weights.mark(layer, made_up=False)
    with pytest.raises(ValueError, match=rf"^{name}: \[2, 64, \d+\] by the settings, \[1, 64, \d+\] in the"):
        load(layer, name, torch.zeros(1, *own[1:]).byte(), name, "w2", 1)


def test_scales_of_the_cache_are_numbers():
    """Negative ones vLLM would take for absent, and those for 1."""
    model = torch.nn.Module()
    model.attn = made(torch.nn.Module, k_scale=torch.tensor(-1.0))
    weights.mark(model, made_up=False)
    weights.check(model)
    for wrong in (-0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=NEGATIVE.format(r"attn\.k_scale")):
            load(model, "attn.k_scale", torch.tensor(wrong))
    load(model, "attn.k_scale", torch.tensor(0.5))
    weights.check(model)


@pytest.mark.parametrize("padded", [True, False])
def test_what_a_model_copies_without_a_loader_is_looked_at(padded):
    """gpt-oss in Quark's format."""
    inner = 64 if padded else 32
    shapes = dict(w13_weight=(2, 2 * inner, 32), w13_weight_scale=(2, 2 * inner, 2), w13_bias=(2, 2 * inner))
    values = {name: torch.zeros(shape).byte() for name, shape in shapes.items()}
    layer = experts("quark", padded, **values | dict(w13_bias=torch.zeros(shapes["w13_bias"])))
    model = torch.nn.ModuleDict(dict(mlp=torch.nn.ModuleDict(dict(experts=torch.nn.Module()))))
    model.mlp.experts.routed_experts = layer
    weights.mark(model, made_up=False)
    modules = dict(model.named_modules())
    of_files = dict(weight=torch.zeros(64, 32).byte(), weight_scale=torch.full((64, 2), 127).byte())
    of_files |= dict(bias=torch.zeros(64))
    for name, given in of_files.items():
        with pytest.raises(ValueError, match=LACKS.format(f"mlp.experts.routed_experts.w13_{name}")):
            weights.check(model)
        own = layer.get_parameter(f"w13_{name}")
        for expert in (0, 1):
            called = f"mlp.experts.{expert}.gate_up_proj.{name}"
            wrongs = [given[:32], given[..., :1], *([] if name == "bias" else [given.float()])]
            for wrong in wrongs:
                with pytest.raises(ValueError, match=f"^{called}: .* by the settings, .* in the checkpoint"):
                    weights._look_at_copied(modules, called, wrong)
            weights._look_at_copied(modules, called, given)
            own.data[expert][tuple(slice(size) for size in given.shape)] = given
    weights.check(model)


def test_gpt_oss_tensors_are_whole_before_a_worker_takes_its_share():
    layer = experts("gpt_oss_mxfp4", True)
    layer.moe_config.tp_size, layer.moe_config.intermediate_size, layer.moe_config.num_logical_experts = 2, 96, 4
    modules = {"mlp.experts.routed_experts": layer}
    shapes = dict(gate_up_proj_blocks=(4, 192, 2, 16), gate_up_proj_scales=(4, 192, 2), gate_up_proj_bias=(4, 192))
    shapes |= dict(down_proj_blocks=(4, 64, 3, 16), down_proj_scales=(4, 64, 3), down_proj_bias=(4, 64))
    for name, shape in shapes.items():
        given, called = torch.zeros(shape), f"mlp.experts.{name}"
        weights._look_at_stack(modules, called, given)
        wrongs = [given.repeat_interleave(2, axis) for axis in range(len(shape))]
        for wrong in (*wrongs, given.flatten(0, 1), given[:1], given[:, 1:]):
            with pytest.raises(ValueError, match=f"^{called}: {re.escape(str(list(shape)))} by the settings, "):
                weights._look_at_stack(modules, called, wrong)


def test_sinks_that_are_no_numbers_are_refused():
    weights._check_sinks("sinks", torch.ones(4).bfloat16())
    for wrong in (torch.ones(4).to(torch.float8_e4m3fn), torch.full((4,), float("nan"))):
        with pytest.raises(ValueError, match="^sinks: torch.float.*; sinks are numbers"):
            weights._check_sinks("sinks", wrong)
