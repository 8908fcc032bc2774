"""Other people's kernels that fuse a collective with what is around it, as far as they are installed."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from benchmarks.harness.gpu_report import note


def flashinfer_case(rank, x, residual, weight, scale, q, first: bool) -> dict[str, Callable[[], object]]:
    """Its fused kernel; without the package, or where it does not start, a note in place of the column.

    rank: its place among others. first: of a table.
    """
    tokens, hidden = x.shape
    try:
        from flashinfer import comm

        workspace = comm.create_allreduce_fusion_workspace(
            backend="trtllm",
            world_size=rank.ranks,
            rank=rank.rank,
            max_token_num=tokens,
            hidden_dim=hidden,
            dtype=x.dtype,
        )
        pattern, normed = comm.AllReduceFusionPattern.kARResidualRMSNormFP8Quant, torch.empty_like(x)

        def case() -> None:
            comm.allreduce_fusion(
                input=x,
                workspace=workspace,
                pattern=pattern,
                launch_with_pdl=True,
                residual_in=residual,
                residual_out=residual,
                norm_out=normed,
                quant_out=q,
                rms_gamma=weight,
                rms_eps=1e-6,
                scale_factor=scale,
            )

        case()
        torch.cuda.synchronize()
    except Exception as error:  # of another package, in any of its versions
        if rank.rank == 0 and first:
            note(f"flashinfer: not timed: {type(error).__name__}: {str(error).splitlines()[:1]}")
        return {}
    return {"flashinfer": case}


def torch_cases(rank, a, b, few, wide) -> dict[str, Callable[[], object]]:
    """torch's own GEMMs that overlap with links, in bfloat16."""
    import torch.distributed._symmetric_memory as symmetric

    name = dist.group.WORLD.group_name
    a, b, few, wide = (t.to(torch.bfloat16) for t in (a, b, few, wide))
    shared = symmetric.empty(*few.shape, dtype=few.dtype, device="cuda").copy_(few)
    fused = torch.ops.symm_mem
    found = {
        "torch, bf16, reduce_scatter": lambda: fused.fused_matmul_reduce_scatter(a, b.t(), "sum", 0, name),
        "torch, bf16, all_gather": lambda: fused.fused_all_gather_matmul(shared, [wide.t()], 0, name),
    }
    try:
        for case in found.values():
            case()
        torch.cuda.synchronize()
    except Exception as error:  # of builds without it
        if rank.rank == 0:
            note(f"torch's fused GEMMs: not timed: {type(error).__name__}: {str(error).splitlines()[:1]}")
        return {}
    return found
