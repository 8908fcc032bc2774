"""What stands in for operators that vLLM's build for a CPU lacks, and what its attention needs."""

import math

import pytest
import torch
from rocm_fp8_vllm import cpu
from vllm import _custom_ops
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope

from .cases import byte_llama, text
from .conftest import moved
from .settings import of_cpus_alone
from .steps import counts

pytestmark = of_cpus_alone


def joined_to_one_scale(model: torch.nn.Module) -> torch.nn.Module:
    """Its linears by the definition of quantization="fp8": a weight scale for all parts of a joined linear, the largest
    magnitude on 448; inputs with a scale a row."""
    from problems import checkpoints

    def by_definition(weight: torch.Tensor, scale: torch.Tensor):
        codes = checkpoints.to_fp8(weight.float() / scale).float()

        def forward(x: torch.Tensor) -> torch.Tensor:
            wide = x.float()
            of_row = wide.abs().amax(-1, keepdim=True) / checkpoints.FP8_MAX
            return (checkpoints.to_fp8(wide / of_row).float() @ codes.t() * of_row * scale).to(x.dtype)

        return forward

    for layer in model.model.layers:
        modules = dict(layer.named_modules())
        for group in checkpoints.JOINED:
            if group[0] not in modules:
                continue
            parts = [modules[name] for name in group]
            scale = torch.stack([part.weight.abs().amax() for part in parts]).max().float() / checkpoints.FP8_MAX
            for part in parts:
                part.forward = by_definition(part.weight, scale)
    return model


def test_a_checkpoint_that_is_not_quantised_is_quantised_on_request(engine):
    llm = engine("bfloat16", quantization="fp8", enforce_eager=True)
    different, same = moved(llm, joined_to_one_scale(byte_llama()), text(8, 400))
    assert same >= 0.95
    # As in test_engine.py: 0.15 bits a byte where sums are in another order.
    assert abs(different.mean()) <= 4 * 0.15 / math.sqrt(different.numel())
    assert different.square().mean().sqrt() <= 1.5 * 0.15
    assert counts(llm)["add_rms_norm_dynamic_fp8"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_quantisation_is_its_definition(dtype, generator):
    x = torch.randn(5, 96, generator=generator).to(dtype)
    wide = x.float()
    scale, bound = torch.tensor([0.0123]), torch.tensor(1.5)
    of_rows, of_all = wide.abs().amax(1, keepdim=True), wide.abs().amax().reshape(1)
    for arguments, expected in (
        (dict(scale=scale), scale),
        (dict(scale=scale.reshape(())), scale.reshape(())),
        (dict(), of_all / 448),
        (dict(use_per_token_if_dynamic=True), of_rows / 448),
        (dict(use_per_token_if_dynamic=True, scale_ub=bound), of_rows.clamp(max=1.5) / 448),
    ):
        q, given = cpu.quantize(x, **arguments)
        assert given.shape == expected.shape and torch.equal(given, expected)
        assert torch.equal(q.float(), (wide / expected).clamp(-448, 448).to(torch.float8_e4m3fn).float())
        out = torch.empty_like(q)
        assert cpu.quantize(x, **arguments, output=out)[0] is out and torch.equal(out.float(), q.float())


def test_what_it_does_not_do_is_refused():
    x = torch.ones(4, 256, dtype=torch.bfloat16)
    for arguments in (
        dict(group_shape=(1, 128)),
        dict(scale=torch.ones(4, 2)),
        dict(scale=torch.ones(4), group_shape=(1, -1)),
        dict(num_token_padding=17),
    ):
        with pytest.raises(ValueError, match="group_shape: .*|num_token_padding: 17; quantize_fp8 adds no rows to 4"):
            cpu.quantize(x, **arguments)


@pytest.mark.parametrize("has", [True, False])
def test_amx_is_asked_for_where_there_is_any(has, monkeypatch):
    """Else Linux kills the process in vLLM's attention; an engine in a process of its own, in test_server.py, shows
    that on a machine with AMX."""
    asked = []
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: asked.append(True))
    cpu.install()
    assert asked == [True] * has
    assert _custom_ops.scaled_fp8_quant is cpu.quantize


@pytest.mark.parametrize("neox", [False, True])
def test_queries_and_keys_with_heads_are_rotated(neox, generator):
    """As latent attention has them: parts of wider rows."""
    cpu.install()
    cpu.install()  # changes nothing
    with set_current_vllm_config(VllmConfig()):
        parameters = dict(rope_theta=10000.0, rope_type="default")
        rope = get_rope(64, max_position=128, rope_parameters=parameters, is_neox_style=neox)
    positions = torch.randint(0, 128, (7,), generator=generator)
    q, k = torch.randn(7, 3, 96, generator=generator), torch.randn(7, 80, generator=generator)
    heads = q[..., 32:].clone(), k[:, None, 16:].clone()
    rotated = rope.forward_cpu(positions, q[..., 32:], k[:, None, 16:])
    frequencies = 10000.0 ** (-torch.arange(0, 64, 2).double() / 64)
    turn = torch.polar(torch.ones(()).double(), (positions.unsqueeze(1) * frequencies).unsqueeze(1))
    for got, x in zip(rotated, heads):
        pairs = x.unflatten(-1, (2, 32)).transpose(-1, -2) if neox else x.unflatten(-1, (32, 2))
        wanted = torch.view_as_real(torch.view_as_complex(pairs.double().contiguous()) * turn)
        wanted = wanted.transpose(-1, -2) if neox else wanted
        torch.testing.assert_close(got.double(), wanted.flatten(-2), rtol=0, atol=1e-4)
