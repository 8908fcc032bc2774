"""gpt-oss' experts: fused_moe on a checkpoint's own tensors, beside transformers' module on what transformers makes of
them."""

import pytest
import torch
from transformers import GptOssConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from problems.inputs import normal

EXPERTS, TOP, D, HIDDEN = 6, 2, 96, 160


def draw_tensors(kernel, device, generator) -> dict[str, torch.Tensor]:
    """As the checkpoint names them: codes [E, rows, blocks, 16], rows of gates and ups in turn."""
    found = {}
    for name, rows, k in (("gate_up_proj", 2 * HIDDEN, D), ("down_proj", D, HIDDEN)):
        codes, scales = kernel.quantize_mxfp4(normal((EXPERTS, rows, k), torch.float32, generator).to(device) * 0.3)
        found[f"{name}_blocks"] = codes.unflatten(-1, (-1, 16))
        found[f"{name}_scales"] = scales.view(torch.uint8)
        found[f"{name}_bias"] = normal((EXPERTS, rows), torch.bfloat16, generator).to(device)
    return found


@pytest.mark.parametrize("tokens", (1, 37))
def test_experts_are_transformers(kernel, device, generator, tokens):
    config = GptOssConfig(
        hidden_size=D, intermediate_size=HIDDEN, num_local_experts=EXPERTS, num_experts_per_tok=TOP, num_hidden_layers=1
    )
    config._experts_implementation = "eager"
    tensors = draw_tensors(kernel, device, generator)
    module = GptOssExperts(config).to(device).float()
    with torch.no_grad():
        for name in ("gate_up_proj", "down_proj"):
            weights = convert_moe_packed_tensors(
                tensors[f"{name}_blocks"], tensors[f"{name}_scales"], dtype=torch.float32
            )
            getattr(module, name).copy_(weights)
            getattr(module, f"{name}_bias").copy_(tensors[f"{name}_bias"])
        x = normal((tokens, D), torch.bfloat16, generator).to(device)
        chosen = torch.rand(tokens, EXPERTS, generator=generator).topk(TOP).indices.to(device)
        routing = torch.rand(tokens, TOP, generator=generator).to(device)
        wanted = module(x.float(), router_indices=chosen, routing_weights=routing)
    options = dict(gate="oai", alpha=module.alpha, limit=module.limit, interleaved=True, out=torch.empty_like(wanted))
    got = kernel.fused_moe(
        x,
        tensors["gate_up_proj_blocks"].flatten(-2),
        tensors["down_proj_blocks"].flatten(-2),
        routing,
        chosen,
        scale_w13=tensors["gate_up_proj_scales"],
        scale_w2=tensors["down_proj_scales"],
        bias13=tensors["gate_up_proj_bias"],
        bias2=tensors["down_proj_bias"],
        **options,
    )
    # Hidden values and each expert's result are rounded to bfloat16 here, not there.
    assert (got - wanted).norm() <= 2.0**-8 * wanted.norm()
