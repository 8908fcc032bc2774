"""Settings of a checkpoint that vLLM would pass over."""

import copy
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


@pytest.mark.parametrize("value", ["hadamard", False, 0, {"R4": "hadamard"}], ids=str)
@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "ModelOpt"])
def test_what_nothing_reads_is_refused(name, value):
    """False, too: "symmetric" would mean more than that something is off."""
    for owner in ("quantization_config", "compression_config"):
        with pytest.raises(
            ValueError, match="^quantization_config: rotate: nothing here knows what it asks for; known: quant_meth"
        ):
            refuse_unknown(config(SETTINGS[name] | dict(rotate=value), owner))


def test_settings_of_deepseek_v4_are_its_own():
    v4 = config(SETTINGS["fp8, blocks"] | dict(expert_dtype="fp4"))
    v4.quantization = "deepseek_v4_fp8"
    refuse_unknown(v4)


def of_quark(where: str, name: str, value, form: str = "quark") -> SimpleNamespace:
    settings = copy.deepcopy(SETTINGS[form])
    inner = settings
    for each in where.split(".") if where else ():
        inner = inner[each]
    inner[name] = value
    return config(settings)


def test_algorithms_of_quark_that_change_weights_alone_are_known():
    refuse_unknown(of_quark("", "algo_config", [dict(name="smoothquant"), dict(name="awq"), None]))
    refuse_unknown(of_quark("global_quant_config.input_tensors", "symmetric", True))


@pytest.mark.parametrize(
    "where, name, value, message",
    [
        (
            "",
            "algo_config",
            [dict(name="awq"), dict(name="QuaRot", r4=True)],
            "algo_config: 'quarot', which may rotate",
        ),
        ("", "layer_type_quant_config", {"Linear": {}}, "layer_type_quant_config; known: "),
        ("export", "rotate", "R1", "export.rotate: nothing"),
        ("export", "weight_format", "fake_quantized", "export.weight_format 'fake_quantized'; known: "),
        ("global_quant_config", "rotate", "R1", "global_quant_config.rotate: nothing"),
        ("layer_quant_config.*k_proj", "rotate", "R1", r"layer_quant_config.\*k_proj.rotate: nothing"),
        ("global_quant_config.weight", "rotate", "R1", "global_quant_config.weight.rotate: nothing"),
        ("global_quant_config.weight", "symmetric", False, "global_quant_config.weight.symmetric False; known: True"),
    ],
)
def test_what_nothing_reads_within_quark_is_refused(where, name, value, message):
    with pytest.raises(ValueError, match=f"^quantization_config: {message}"):
        refuse_unknown(of_quark(where, name, value))


@pytest.mark.parametrize("name, value", [("scale_calculation_mode", "floor"), ("ch_axis", 0)])
def test_another_rounding_of_inputs_is_refused(name, value):
    with pytest.raises(ValueError, match=f"global_quant_config.input_tensors.{name} {value!r}; known"):
        refuse_unknown(of_quark("global_quant_config.input_tensors", name, value, "quark, MXFP4"))


def test_what_nothing_reads_within_compressed_tensors_is_refused():
    settings = copy.deepcopy(SETTINGS["compressed-tensors, blocks"])
    settings["config_groups"]["group_0"]["rotate"] = "R1"
    with pytest.raises(ValueError, match="^quantization_config: config_groups.group_0.rotate: nothing here knows"):
        refuse_unknown(config(settings))


def test_scales_of_another_type_are_refused():
    with pytest.raises(ValueError, match="^quantization_config: scale_fmt 'ue5m3'; known: float, ue8m0"):
        refuse_unknown(config(SETTINGS["fp8, blocks"] | dict(scale_fmt="ue5m3")))


def test_an_engine_refuses_them(engine, checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint("static"), tmp_path / "rotated")
    checkpoints.configure(folder, checkpoints.FORMATS["fp8, static"].settings([]) | dict(rotate="hadamard"))
    with pytest.raises(ValueError, match="quantization_config: rotate: nothing here knows what it asks for"):
        engine("static", enforce_eager=True, model=str(folder))
