"""The demo's model: what its corpus promises, and that a run leaves a checkpoint which transformers loads."""

import json
from pathlib import Path

import pytest
import torch

from examples.byte_llama import corpus, train
from tests.settings import need_stdlib

need_stdlib()


@pytest.fixture(scope="module")
def training() -> bytes:
    return corpus.training_bytes()


@pytest.fixture(scope="module")
def validation() -> bytes:
    return corpus.validation_bytes()


def test_held_out_is_ordinary_modules_of_some_size():
    files = corpus.held_out_files()
    assert tuple(name for name, _ in files) == corpus.HELD_OUT
    assert 150_000 < sum(len(text) for _, text in files) < 400_000
    for name, text in files:
        compile(text, name, "exec")


def test_sizes(training, validation):
    # Distributions split the library (IDLE, Tk and distutils may be packages of their own).
    assert 4_000_000 < len(training) < 20_000_000
    assert 0.015 < len(validation) / len(training) < 0.06


def test_streams_are_separated_utf8(training, validation):
    for stream in (training, validation):
        assert stream[0] == stream[-1] == corpus.BOS
        assert b"\0\0" not in stream
        assert b"\r" not in stream
        stream.decode("utf-8")


def test_the_parts_are_disjoint(training, validation):
    seen = set(training.split(b"\0"))
    assert seen.isdisjoint(set(validation.split(b"\0")) - {b""})
    assert seen.isdisjoint(text for _, text in corpus.held_out_files())


def test_held_out_text_has_no_copy_in_training(training, validation):
    # Long lines identify their module; a few are shared by custom (a docstring repeated in asyncio's
    # queue, say). A held-out module with a copy elsewhere in the library would share most of them.
    def long_lines(text: bytes) -> list[bytes]:
        return [line for line in text.split(b"\n") if len(line.strip()) >= 40]

    elsewhere = set(long_lines(training) + long_lines(validation))
    for name, text in corpus.held_out_files():
        lines = long_lines(text)
        shared = sum(line in elsewhere for line in lines)
        assert shared <= 0.2 * len(lines), name


def test_generated_and_foreign_files_are_left_out(training):
    assert b"topics = {'assert':" not in training and b"build_time_vars" not in training.split(b"\n")
    names = [name for name, _ in corpus._sources()]
    assert names == sorted(names)
    assert not any(part in name.split("/") for name in names for part in ("test", "tests", "site-packages"))


@pytest.mark.parametrize("text", ["", "def f(x):\n\treturn x\n", "naïve – 日本 🐍", "\0"])
def test_encode_round_trip(text):
    ids = corpus.encode(text)
    assert all(0 <= token < corpus.VOCABULARY for token in ids)
    assert corpus.decode(ids) == text


def test_decode_replaces_a_cut_character():
    assert corpus.decode(corpus.encode("aé")[:-1]) == "a\ufffd"


def test_an_interpreter_without_sources_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(corpus.sysconfig, "get_path", lambda name: str(tmp_path / "python.zip"))
    with pytest.raises(FileNotFoundError, match="no complete standard library") as caught:
        corpus.training_bytes()
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def text():
    """A few kilobytes in place of each part of the corpus."""
    return torch.frombuffer(bytearray(corpus.held_out_files()[0][1][:4096]), dtype=torch.uint8)


@pytest.fixture
def run(text, tmp_path):
    """The real code, on a model of 16 thousand parameters."""
    defaults = dict(out=tmp_path / "checkpoint", device=torch.device("cpu"), batch=4, length=32, eval_windows=4)
    config = train.model_config(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
    )

    def run(**changes) -> dict:
        return train.train(train.Settings(**(defaults | changes)), config, train.Streams(text, text, text))

    return run


def test_two_steps_leave_a_loadable_checkpoint(run, text, tmp_path):
    report = run(steps=2)
    assert report["bytes_seen"] == 2 * 4 * 32
    # Two steps from random weights: near the 8 bits of a uniform guess.
    assert 6 < report["held_out_bits_per_byte"] < 9
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert json.loads((tmp_path / "checkpoint" / "training.json").read_text()) == report

    model = train.LlamaForCausalLM.from_pretrained(tmp_path / "checkpoint", dtype=torch.bfloat16)
    assert model.config.tie_word_embeddings and model.config.bos_token_id == corpus.BOS
    prompt = torch.tensor([[corpus.BOS, *corpus.encode("import ")]])
    written = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, do_sample=False)
    assert written.shape[1] <= prompt.shape[1] + 4

    # What the report says of the weights holds for the file.
    settings = train.Settings(out=tmp_path, device=torch.device("cpu"), batch=4, length=32)
    again = train.bits_per_byte(model.float(), text, settings, None)
    assert again == pytest.approx(report["held_out_bits_per_byte"], abs=1e-3)


def test_loss_decreases_and_a_new_run_replaces_the_old(run, tmp_path):
    short = run(steps=2)
    long = run(steps=60, peak_rate=1e-2)
    assert long["validation_bits_per_byte"] < short["validation_bits_per_byte"] - 1
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_time_budget_ends_decayed(run):
    assert run(minutes=0.005)["steps"] >= 1
    schedule = train.Schedule(train.Settings(out=Path(), device=None, batch=1, minutes=1.0))
    assert schedule.rate(0.0) > 0
    assert schedule.rate(schedule.WARM_UP) == pytest.approx(2e-3)
    assert schedule.rate(1.0) == pytest.approx(2e-3 * schedule.FLOOR)


def test_an_interrupted_save_keeps_the_old_checkpoint(run, tmp_path, monkeypatch):
    run(steps=1)
    before = (tmp_path / "checkpoint" / "training.json").read_bytes()
    rename, calls = train.os.rename, []

    def interrupted_between_the_two(source, target):
        calls.append(source)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(train.os, "rename", interrupted_between_the_two)
    with pytest.raises(KeyboardInterrupt):
        run(steps=1, seed=1)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert (tmp_path / "checkpoint" / "training.json").read_bytes() == before


def test_the_real_configuration_fits_its_size():
    with torch.device("meta"):
        model = train.LlamaForCausalLM(train.model_config())
    # parameters() counts the tied embedding once, as the file does; two bytes each.
    assert sum(parameter.numel() for parameter in model.parameters()) * 2 < 12_000_000


def test_arguments(tmp_path, capsys):
    settings, dropout = train.parse_arguments(["--device", "cpu", "--out", str(tmp_path / "new")])
    assert (settings.minutes, settings.steps, settings.batch, dropout) == (3.3, None, 8, 0.25)
    settings, _ = train.parse_arguments(["--device", "cpu", "--out", str(tmp_path / "new"), "--steps", "3"])
    assert (settings.minutes, settings.steps) == (None, 3)
    # A folder that holds something else is never replaced.
    for wrong in (["--out", str(tmp_path)], ["--minutes", "-1"], ["--minutes", "1", "--steps", "1"]):
        with pytest.raises(SystemExit):
            train.parse_arguments(["--device", "cpu", *wrong])
    assert "no checkpoint" in capsys.readouterr().err
