"""Models whose code reads a linear's weight, and linears that choose experts: found before anything is converted."""

import importlib
import warnings

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    FalconMambaConfig,
    MambaConfig,
    MT5Config,
    SwitchTransformersConfig,
    T5Config,
)

from problems.expert_models import config
from problems.tiny_llama import ACTIVATIONS, distance, logits, quantize, tokens

pytestmark = pytest.mark.usefixtures("without_gradients")

T5 = dict(vocab_size=128, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=0)
SWITCH = T5 | dict(num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_experts=4, num_decoder_layers=2)
MAMBA = dict(vocab_size=128, hidden_size=64, state_size=8, num_hidden_layers=2, time_step_rank=8)
# Name -> (configuration, names of linears that stay, less their layers).
MODELS = {
    "t5": (T5Config(**T5), {"DenseReluDense.wo"}),
    "t5, gated": (T5Config(**T5, feed_forward_proj="gated-gelu"), {"DenseReluDense.wo"}),
    "mt5": (MT5Config(**T5), {"DenseReluDense.wo"}),
    "switch": (
        SwitchTransformersConfig(**SWITCH),
        {"mlp.wo", "router.classifier", *(f"expert_{e}.wo" for e in range(4))},
    ),
    # The last two where mamba_ssm's kernels are installed.
    "mamba": (MambaConfig(**MAMBA), {"mixer.dt_proj", "mixer.x_proj", "mixer.out_proj"}),
    "falcon_mamba": (FalconMambaConfig(**MAMBA), {"mixer.dt_proj", "mixer.x_proj", "mixer.out_proj"}),
    "jamba": (config("jamba"), {"mamba.dt_proj", "feed_forward.router"}),
    "deepseek_v32": (config("deepseek_v32"), {"indexer.weights_proj"}),
}
# Weights, and inputs of linears, are rounded by 2^-5 of their size, root mean square: .044 a linear, one behind the
# other. An input that is cast to FP8 by no scale, or a linear left out, is off by .5 and more.
FP8_NOISE = 0.35


def made(kind, generator: torch.Generator, device: torch.device) -> torch.nn.Module:
    of = AutoModelForSeq2SeqLM if kind.is_encoder_decoder else AutoModelForCausalLM
    model = of.from_config(kind, dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and "embed" not in name and "shared" not in name:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5)
    return model.to(device).eval()


def called(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    if model.config.is_encoder_decoder:
        return model(input_ids=ids, decoder_input_ids=ids, use_cache=False).logits
    return logits(model, ids)


def of_linear(name: str) -> str:
    return ".".join(name.split(".")[-2:])


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("name", MODELS)
def test_a_linear_whose_weight_is_read_stays(kernel, device, generator, name, activations):
    kind, stay = MODELS[name]
    if activations == "static" and kind.is_encoder_decoder:
        pytest.skip("calibration runs a model on input_ids alone")
    model, ids = made(kind, generator, device), tokens(generator, 2, 9, device)
    linears = {of_linear(each) for each, module in model.named_modules() if type(module) is torch.nn.Linear}
    stay = stay - ({"feed_forward.router"} - linears)  # since transformers 5.24 Jamba's is a module of its own
    wanted = called(model, ids)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quantize(kernel, model, [ids], activations)
    # A chosen expert more or less, or a token that the indexer takes, is another model.
    if name not in ("switch", "jamba", "deepseek_v32"):
        assert distance(called(model, ids), wanted) <= FP8_NOISE
    assert torch.isfinite(called(model, ids)).all()
    head = model.get_output_embeddings()
    plain = {name: module for name, module in model.named_modules() if type(module) is torch.nn.Linear}
    assert {of_linear(each) for each, module in plain.items() if module is not head} == stay
    said = " ".join(str(each.message) for each in caught)
    for each in stay - {"router.classifier", "feed_forward.router"}:
        assert f"{each} " in said and "stays as it is" in said and "reads its weight" in said


def test_an_int8_model_keeps_them_too(kernel, device, generator):
    kind, stay = MODELS["mamba"]
    model, ids = made(kind, generator, device), tokens(generator, 2, 9, device)
    wanted = called(model, ids)
    with pytest.warns(UserWarning, match=r"mixer\.dt_proj stays as it is, because MambaMixer reads its weight"):
        kernel.smoothquant.quantize(model, activations="dynamic", alpha=None)
    assert distance(called(model, ids), wanted) <= FP8_NOISE
    plain = {of_linear(name) for name, module in model.named_modules() if type(module) is torch.nn.Linear}
    assert plain - {"lm_head"} == stay


# --- what the analysis finds, in modules of its own ---


class Reads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("called", "cast", "operand", "placed", "given", "looped", "aliased", "by_name"):
            self.add_module(name, torch.nn.Linear(8, 8))
        self.inner = torch.nn.ModuleList([torch.nn.Linear(8, 8)])

    def forward(self, x):
        x = self.called(x).to(self.placed.weight.device)
        x = self.cast(x.to(self.cast.weight.dtype)) @ self.operand.weight.T
        x = self.run(self.given, x)
        for each in self.inner:
            x = x * each.weight.sum()
        alias = self.aliased
        x = x + alias.weight.mean() + self.by_name.weight.mean()
        return self.placed(self.looped(x))

    def run(self, linear, x):
        return linear(x)


class Experts(torch.nn.Module):
    """Chooses by `scores`, directly and in a method; what comes of `x` by a weight of its own is no score."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Linear(8, 8)

    def forward(self, x, scores, *, more=None):
        _, chosen = self.choose(scores.float())
        return self.weight(x).topk(1).values.sum() + chosen.sum() + more.argmax(-1).sum()

    def choose(self, scores):
        return torch.topk(scores, 2)


class Chooses(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("scores", "by_method", "by_weight", "before", "value", "attended", "given", "named", "multiplied"):
            self.add_module(name, torch.nn.Linear(8, 8))
        self.weighs, self.experts = torch.nn.Linear(8, 1), Experts()

    def forward(self, x):
        logits = torch.nn.functional.softmax(self.scores(self.before(x)).float(), dim=-1)
        weights, chosen = torch.topk(logits, 2)
        more = self.choose(self.by_method(x))
        most = torch.nn.functional.linear(x, self.by_weight.weight).argmax(-1)
        products = torch.matmul(self.attended(x), x.mT).topk(1)
        more = more + self.experts(self.multiplied(x), self.given(x), more=self.named(x).sigmoid())
        return self.weighs(x) * self.value(x) * weights.sum() + chosen.sum() + more + most + products.values.sum()

    def choose(self, scores):
        _, chosen = (scores + 1).sigmoid().sort(-1)
        return chosen.sum()


def test_what_is_read_and_what_chooses(kernel):
    source = importlib.import_module(kernel.quantization.__name__ + ".source")
    assert set(source.readers(Reads())) == {"cast", "operand", "given", "inner.0", "aliased", "by_name"}
    found = {"scores", "by_method", "by_weight", "weighs", "given", "named", "experts.weight"}
    assert set(source.choosers(Chooses())) == found
