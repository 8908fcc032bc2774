"""The commands of `python -m benchmarks GROUP NAME`: name -> module."""

GROUPS = {
    "measure": {  # on this machine's GPU or CPU, beside peers
        "cpu": "cpu_ratios",
        "cuda": "cuda",
        "rocm": "rocm",
        "gemms": "gpu_gemms",
        "scales": "gpu_scales",
        "moe": "gpu_moe",
        "mla": "gpu_mla",
        "all-reduce": "gpu_all_reduce",
        "strategies": "scaling_strategies",
        "hub": "benchmark",
    },
    "simulate": {  # by the simulator's clock
        "operator": "simulate",
        "gemms": "simulated_gemms",
        "moe": "moe_rocm",
        "mla": "mla_rocm",
    },
    "compare": {  # with another checkout, with published figures, and the document of all figures
        "builds": "gpu_builds",
        "published": "published_mi300x",
        "plot": "plot_performance",
        "section": "performance",
    },
    "tune": {"forms": "tune", "costs": "fit_costs"},
    "model": {  # layers and whole models
        "kernels": "gpu_layer",
        "layers": "gpu_model_layers",
        "decode": "gpu_decode",
        "checkpoint": "one_layer",
        "vllm": "vllm_latency",
    },
}


def command(module: str) -> list[str]:
    """What runs a module."""
    names = [(group, name) for group, of in GROUPS.items() for name, each in of.items() if each == module]
    return ["python", "-m", "benchmarks", *names[0]]
