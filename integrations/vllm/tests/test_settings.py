"""Settings of a checkpoint that vLLM would pass over."""

import shutil
from types import SimpleNamespace

import pytest
from rocm_fp8_vllm.settings import refuse_unknown

from problems import checkpoints, mx_checkpoints

IGNORED = ["model.layers.0.mlp.gate"]
SETTINGS = {name: form.settings(IGNORED) for name, form in checkpoints.FORMATS.items() if form.settings is not None}
SETTINGS |= {name: form.settings(tuple(IGNORED)) for name, form in mx_checkpoints.FORMS.items()}
SETTINGS |= {
    "gpt-oss": dict(quant_method="mxfp4", modules_to_not_convert=None),
    "ModelOpt": dict(quant_method="modelopt", quant_algo="FP8", rotation="hadamard"),
    "transformers'": dict(quant_method="fp8", modules_to_convert=None, weight_block_size=(128, 128), dequantize=False),
}


def config(settings: dict | None, name: str = "quantization_config") -> SimpleNamespace:
    inner = SimpleNamespace(**{name: settings})
    return SimpleNamespace(hf_config=inner, hf_text_config=inner, quantization=None)


@pytest.mark.parametrize("name", SETTINGS)
def test_what_formats_say_is_known(name):
    refuse_unknown(config(SETTINGS[name]))
    refuse_unknown(config(SETTINGS[name] | dict(rotate=None, others=[], more={})))
    refuse_unknown(config(None))


def test_what_vllm_adds_is_known(engine):
    llm = engine("one layer", enforce_eager=True)
    settings = llm.llm_engine.vllm_config.model_config.hf_config.quantization_config
    assert settings["quant_method"] == "compressed-tensors" and "total_num_heads" in settings


@pytest.mark.parametrize("value", ["hadamard", False, 0, {"R4": "hadamard"}], ids=str)
@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "ModelOpt"])
def test_what_nothing_reads_is_refused(name, value):
    """False, too: "symmetric" would mean more than that something is off."""
    for owner in ("quantization_config", "compression_config"):
        with pytest.raises(
            ValueError, match="^quantization_config: rotate: vLLM would pass it over; known: quant_meth"
        ):
            refuse_unknown(config(SETTINGS[name] | dict(rotate=value), owner))


def test_settings_of_deepseek_v4_are_its_own():
    v4 = config(SETTINGS["fp8, blocks"] | dict(expert_dtype="fp4"))
    v4.quantization = "deepseek_v4_fp8"
    refuse_unknown(v4)


def test_rotations_of_quark_are_refused():
    settings = SETTINGS["quark"]
    refuse_unknown(config(settings | dict(algo_config=[dict(name="smoothquant"), dict(name="awq"), None])))
    with pytest.raises(ValueError, match="algo_config: 'quarot', which may rotate activations"):
        refuse_unknown(config(settings | dict(algo_config=[dict(name="awq"), dict(name="QuaRot", r4=True)])))


def test_an_engine_refuses_them(engine, checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint("static"), tmp_path / "rotated")
    checkpoints.configure(folder, checkpoints.FORMATS["fp8, static"].settings([]) | dict(rotate="hadamard"))
    with pytest.raises(ValueError, match="quantization_config: rotate: vLLM would pass it over"):
        engine("static", enforce_eager=True, model=str(folder))
