"""examples/demo.py as a user runs it, and its error messages."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from examples import demo as module
from problems.tiny_llama import llama
from tests.settings import ROOT, need_stdlib

need_stdlib()

pytestmark = pytest.mark.usefixtures("fast_products")

DEMO = [sys.executable, "-m", "examples.demo"]
SHORT = ["--skip-operators", "--tokens", "8", "--windows", "1"]
CONTEXT = 4096


def started(*arguments: str, folder: Path, **environment: str) -> subprocess.Popen:
    """The demo in `folder`, so that whatever it leaves is found there. Never on the network."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub"), "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    return subprocess.Popen([*DEMO, *arguments], cwd=folder, env=os.environ | offline | environment, **pipes)


def demo(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    with started(*arguments, folder=folder, **environment) as process:
        try:
            output, errors = process.communicate(timeout=900)
        finally:
            process.kill()  # of no effect where it has ended
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@pytest.fixture
def called(monkeypatch, capsys):
    """As `demo`, in this process, which has torch and transformers: for what differs from a run of its own in arguments
    alone."""

    def call(*arguments: str, folder: Path) -> subprocess.CompletedProcess:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["demo.py", *arguments])
        code = module.main()
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """Folders: a Llama, a GPT-2, a Llama whose weights are damaged, and nothing."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    # A token a byte, in the way of real byte-level tokenizers.
    vocabulary = {letter: i + 1 for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytes_ = Tokenizer(BPE(vocab=vocabulary | {"</s>": 0}, merges=[]))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_, eos_token="</s>")

    folder = tmp_path_factory.mktemp("models")
    generator = torch.Generator().manual_seed(1)
    llama(generator, vocab_size=257, max_position_embeddings=CONTEXT).save_pretrained(folder / "llama")
    sizes = dict(vocab_size=257, n_embd=32, n_layer=1, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(folder / "gpt2")
    for name in ("llama", "gpt2"):
        tokenizer.save_pretrained(folder / name)
    shutil.copytree(folder / "llama", folder / "damaged")
    weights = folder / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    (folder / "empty").mkdir()
    return folder


# --- runs ---


def figures(output: str) -> tuple[dict[str, tuple[float, float]], float]:
    """Bits per byte and tokens per second of both models; the share of equal next tokens."""
    lines = output.splitlines()
    table = next(i for i, line in enumerate(lines) if line.split() == "bits per byte tokens per second".split())
    rows = {name: (float(bits), float(rate)) for name, bits, rate in (lines[table + i].split() for i in (1, 2))}
    equal = next(line for line in lines if line.startswith("Equal next tokens: "))
    return rows, float(equal.split()[3].rstrip("%")) / 100


def test_the_byte_level_llama(kernel, called, device, tmp_path):
    result = called(*SHORT, "--device", device.type, "--prompt", "import os\nimport sy", folder=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Prompt:\nimport os\nimport sy\n" in result.stdout and kernel.__name__ in result.stdout
    before, fp8 = (result.stdout.split(f"--- {name}:\n")[1].splitlines()[0] for name in ("bfloat16", "FP8"))
    assert before == "s" and fp8 == "s"  # what follows is another line
    rows, equal = figures(result.stdout)
    assert list(rows) == ["bfloat16", "FP8"]
    for bits, rate in rows.values():
        # A uniform guess is 8 bits; no compressor of source code comes below 0.5.
        assert 0.5 < bits < 3 and rate > 0
    # FP8 loses little, on 512 scored bytes.
    assert abs(rows["FP8"][0] - rows["bfloat16"][0]) < 0.05 and 0.9 < equal <= 1
    assert list(tmp_path.iterdir()) == []


def test_the_byte_level_llama_with_dynamic_scales(kernel, called, device, tmp_path):
    arguments = ["--activations", "dynamic", "--device", device.type, "--prompt", "import os\nimport sy"]
    result = called(*SHORT, *arguments, folder=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "dynamic activations" in result.stdout
    assert result.stdout.split("--- FP8:\n")[1].splitlines()[0] == "s"
    rows, equal = figures(result.stdout)
    assert abs(rows["FP8"][0] - rows["bfloat16"][0]) < 0.05 and 0.9 < equal <= 1


def test_the_byte_level_deepseek(kernel, called, device, tmp_path):
    """With a table of where a step's time goes, on a CPU, and its plot."""
    arguments = ["--deepseek", "--tokens", "6", "--windows", "2", "--prompt", "import os\nimport sy", "--output", "out"]
    result = called(*arguments, "--device", device.type, folder=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "byte-level DeepSeek V3" in result.stdout and "scales per block, dynamic activations" in result.stdout
    rows, equal = figures(result.stdout)
    assert abs(rows["FP8"][0] - rows["bfloat16"][0]) < 0.05 and 0.9 < equal <= 1
    if device.type != "cpu":
        assert "is told on a CPU alone" in result.stdout and list(tmp_path.iterdir()) == []
        return
    lines = [line.split() for line in result.stdout.splitlines()]
    counted = {line[0]: int(line[1]) for line in lines if len(line) == 4 and line[1].isdigit()}
    assert counted["mla_decode"] == counted["mla_append"] == 4 and counted["moe_route"] == 3
    assert (tmp_path / "out" / "deepseek.png").read_bytes().startswith(b"\x89PNG")


def test_another_llama_with_a_prompt_from_a_file(device, models, tmp_path):
    (tmp_path / "prompt.txt").write_text("größer = 2\n", encoding="utf-8")
    arguments = ["--model", str(models / "llama"), "--prompt-file", "prompt.txt", "--granularity", "tensor"]
    result = demo(*SHORT, "--device", device.type, *arguments, folder=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Prompt:\ngrößer = 2\n" in result.stdout and "scales per tensor" in result.stdout
    assert result.stdout.index("--- bfloat16:") < result.stdout.index("--- FP8:")
    rows, equal = figures(result.stdout)
    # Random weights know nothing of the text, but their logits of spread 1 are near each other in both formats.
    assert all(6 < bits < 12 for bits, _ in rows.values()) and equal > 0.5
    assert abs(rows["FP8"][0] - rows["bfloat16"][0]) < 0.2
    assert [path.name for path in tmp_path.iterdir()] == ["prompt.txt"]


# --- errors: one line that names what is wrong ---


def assert_one_line(result: subprocess.CompletedProcess, *parts: str) -> None:
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("demo.py: "), result.stderr
    assert "Traceback" not in result.stderr + result.stdout
    for part in parts:
        assert part in result.stderr


# What is wrong -> (arguments, what the message names).
PROMPT_ERRORS = {
    "missing": (["--prompt-file", "nowhere.txt"], ["nowhere.txt", "No such file"]),
    "a folder": (["--prompt-file", "."], ["directory"]),
    "not UTF-8": (["--prompt-file", "latin.txt"], ["latin.txt", "not UTF-8", "byte 3", "0xe9"]),
    "empty": (["--prompt", ""], ["prompt is empty"]),
    "an empty file": (["--prompt-file", "empty.txt"], ["prompt is empty"]),
}


@pytest.mark.parametrize("case", PROMPT_ERRORS)
def test_prompts_that_are_none(called, tmp_path, case):
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "empty.txt").touch()
    arguments, parts = PROMPT_ERRORS[case]
    result = called(*SHORT, *arguments, folder=tmp_path)
    assert_one_line(result, *parts)
    assert result.stdout == ""  # before any work


MODEL_ERRORS = {
    "empty": ["empty", "config.json"],
    "gpt2": ["GPT2LMHeadModel", "holds no linear"],
    "damaged": ["damaged"],
}


@pytest.mark.parametrize("name", MODEL_ERRORS)
def test_models_that_are_none(kernel, called, device, models, tmp_path, name):
    arguments = ["--device", device.type, "--prompt", "a", "--model", str(models / name)]
    result = called(*SHORT, *arguments, folder=tmp_path)
    assert_one_line(result, *MODEL_ERRORS[name])


def test_a_hub_model_without_the_network(device, tmp_path):
    # Offline, and should that not hold: proxies that are a closed port.
    closed = {f"{name}_proxy": "http://127.0.0.1:9" for name in ("http", "https", "HTTP", "HTTPS", "ALL")}
    arguments = ["--device", device.type, "--prompt", "a", "--model", "nobody/no-model"]
    result = demo(*SHORT, *arguments, folder=tmp_path, **closed)
    assert_one_line(result, "couldn't")


def test_no_build(called, monkeypatch, tmp_path):
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("LOCAL_KERNELS", f"rocm-fp8-kernels/rocm-fp8-kernels={tmp_path / 'nothing'}")
    result = called(*SHORT, "--prompt", "a", folder=tmp_path)
    assert_one_line(result, "no build of the kernels", "make build", "nothing")


WRONG = [
    ["--tokens", "0"],
    ["--windows", "-1"],
    ["--prompt", "a", "--prompt-file", "b"],
    ["--deepseek", "--model", "a"],
    ["--granularity", "block", "--activations", "static"],
]


@pytest.mark.parametrize("wrong", WRONG, ids=" ".join)
def test_arguments_that_make_no_sense(monkeypatch, capsys, wrong):
    monkeypatch.setattr(sys, "argv", ["demo.py", *wrong])
    with pytest.raises(SystemExit) as caught:
        module.main()
    assert caught.value.code == 2 and "error: " in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--tokens", str(CONTEXT)], ["--device", "cuda"]], ids=["tokens", "device"])
def test_more_than_there_is(kernel, models, monkeypatch, capsys, wrong):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["demo.py", "--prompt", "a", "--model", str(models / "llama"), *wrong])
    assert module.main() == 1
    assert f"demo.py: {' '.join(wrong)}: " in capsys.readouterr().err


def test_an_interrupt_ends_with_130_and_leaves_nothing(device, models, tmp_path):
    if device.type != "cpu":
        pytest.skip("a GPU may be done before the signal comes")
    # With the operators and their plot still to come; 4000 tokens leave seconds for the signal.
    arguments = ["--model", str(models / "llama"), "--prompt", "a", "--tokens", "4000", "--output", "pictures"]
    arguments += ["--device", "cpu", "--activations", "dynamic"]
    with started(*arguments, folder=tmp_path) as process:
        for line in process.stdout:
            if line.startswith("Prompt:"):
                process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
    assert process.returncode == 130
    assert "interrupted" in errors and "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("buffering", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_reader_that_leaves_is_no_error(device, models, tmp_path, buffering):
    # A buffered demo meets the closed end of the pipe only when it exits.
    arguments = [*SHORT, "--device", device.type, "--model", str(models / "llama"), "--prompt", "a"]
    arguments += ["--activations", "dynamic"]  # sooner, as nothing is calibrated
    with started(*arguments, folder=tmp_path, PYTHONUNBUFFERED=buffering) as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode != 0 and errors == ""
