"""What examples/demo.py is made of: its plot, the times of operators, decoding and its text."""

import itertools
import math
from pathlib import Path

import pytest
import torch

from benchmarks.harness import timing
from benchmarks.harness.shapes import LlamaShapes
from examples.byte_llama import corpus
from examples.llama_fp8 import decoding, operator_times, plot, text
from problems.tiny_llama import llama, tokens
from tests.settings import need_stdlib

need_stdlib()

TIMES = [
    operator_times.OperatorTime(model, f"skinny_gemm {name}", "64x32", 2e-6 * i, 3e-6 * i, 1e-6 * i)
    for model in ("Small", "Large")
    for i, name in enumerate(("QKV", "O", "Down"), 1)
]


def test_the_plot_is_a_picture(tmp_path):
    path = tmp_path / "new" / "folder" / "times.png"
    plot.draw(TIMES, "title", path)
    picture = path.read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n") and picture.endswith(b"IEND\xaeB`\x82")
    assert [entry.name for entry in path.parent.iterdir()] == ["times.png"]
    narrow = tmp_path / "one.png"
    plot.draw(TIMES[:3], "title", narrow)
    # The header's width and height: a row a model, each as wide as a README.
    sizes = [[int.from_bytes(p.read_bytes()[i : i + 4], "big") for i in (16, 20)] for p in (path, narrow)]
    assert sizes[0][0] == sizes[1][0] == 1200 and sizes[0][1] > 1.7 * sizes[1][1]


def test_the_plots_panels(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(plot.bars, "draw", lambda panels, title, path: drawn.extend(panels))
    cached = operator_times.OperatorTime("Small", "swiglu_fp8", "1x9", 2e-6, 5e-6, None)
    plot.draw([cached, *TIMES[:3]], "title", tmp_path / "a.png")
    shares, ratios = drawn
    # What stays in the caches has no share of memory's rate.
    assert shares.bars[0].heights == [0.5] * 3 and shares.top == 1 and shares.groups[0] == "QKV\n64\nx32"
    assert ratios.bars[0].heights == pytest.approx([2.5, 1.5, 1.5, 1.5]) and ratios.line == 1


@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()], ids=["full", "Ctrl-C"])
def test_a_plot_that_fails_leaves_nothing_new(tmp_path, monkeypatch, error):
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    def half(self, path, **kwargs):
        Path(path).write_bytes(b"\x89PNG")
        raise error

    (tmp_path / "old.png").write_bytes(b"yesterday's")
    monkeypatch.setattr(Figure, "savefig", half)
    for name in ("new.png", "old.png"):
        with pytest.raises(type(error)):
            plot.draw(TIMES, "title", tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["old.png"]
    assert (tmp_path / "old.png").read_bytes() == b"yesterday's"
    assert pyplot.get_fignums() == []


def test_operator_times(kernel, device, monkeypatch):
    monkeypatch.setattr(timing, "ROTATED_BYTES", 1 << 18)
    shapes = LlamaShapes("Small", hidden=64, heads=4, kv_heads=2, intermediate=96, head_dim=16)
    times = list(operator_times.measure(kernel, shapes, str(device)))
    gemms = [("skinny_gemm QKV", "128x64"), ("skinny_gemm O", "64x64"), ("skinny_gemm Gate/Up", "192x64")]
    assert [(t.operator, t.shape) for t in times] == [
        ("add_rms_norm_fp8", "1x64"),
        ("swiglu_fp8", "1x192"),
        *gemms,
        ("skinny_gemm Down", "64x96"),
    ]
    assert all(t.model == "Small" and min(t.kernel, t.torch) > 0 for t in times)
    assert [t.floor for t in times[:2]] == [None, None]  # their operands are in the caches
    assert all(0 < t.floor <= t.kernel for t in times[2:])


def test_an_operator_that_beats_torch_sum_is_its_own_floor(kernel, device, monkeypatch):
    if device.type != "cpu":
        pytest.skip("the probe runs beside the operators on a CPU")
    monkeypatch.setattr(timing, "ROTATED_BYTES", 1 << 18)
    # The probe reads 2**18 bytes in 64 seconds, the operators any number in 1: in 64x64 bytes the probe is faster.
    took = {"read": 64.0, "kernel": 1.0, "torch": 8.0}

    def samples(cases, rounds):
        return {name: [took[name]] * rounds for name in cases}

    monkeypatch.setattr(operator_times, "samples_in_turn", samples)
    shapes = LlamaShapes("Small", hidden=64, heads=4, kv_heads=2, intermediate=96, head_dim=16)
    floors = {t.shape: t.floor for t in operator_times.measure(kernel, shapes, "cpu")}
    assert floors["64x64"] == 1.0 and floors["192x64"] == 1.0
    took["read"] = 1.0
    floors = {t.shape: t.floor for t in operator_times.measure(kernel, shapes, "cpu")}
    assert floors["64x64"] == 64 * 64 / 2**18


def test_the_table_of_times():
    cached = operator_times.OperatorTime("Small", "swiglu_fp8", "1x9", 2e-6, 3e-6, None)
    assert operator_times.table([cached]).split()[-2:] == ["-", "1.5x"]
    header, first, *_ = operator_times.table(TIMES[1:]).splitlines()
    assert [header.split()[0], *first.split()] == ["operator", "skinny_gemm", "O", "64x32", "4.0", "6.0", "2.0", "1.5x"]


# --- the parts: text ---


def test_the_default_prompt_is_unseen_and_ends_in_a_function():
    prompt = text.default_prompt()
    held_out = dict(corpus.held_out_files())["textwrap.py"].decode()
    # Beside 160 new bytes it must fit into the byte-level model's context.
    assert prompt in held_out and prompt[0] > " " and 500 < len(prompt.encode()) <= 1024 - 160 - 1
    assert prompt.rstrip().endswith("def _wrap_chunks(self, chunks):")
    assert prompt[-400:].encode() not in corpus.training_bytes()


def test_windows_are_pieces_of_the_text_evenly_spread():
    source = "".join(f"line {i:05}\n" for i in range(2000)).encode()
    rows = text.windows(source, text.ByteTokenizer(), 50, 7)
    assert rows.shape == (7, 50) and rows.dtype == torch.int64
    starts = []
    for row in rows.tolist():
        assert row[0] == corpus.BOS
        starts.append(source.index(bytes(row[1:])))
    gaps = {b - a for a, b in itertools.pairwise(starts)}
    assert starts[0] == 0 and len(gaps) == 1
    # From the text's beginning to its end, but for what a window of a real tokenizer may take.
    assert len(source) - 8 * 50 - 7 <= starts[-1] <= len(source) - 50
    assert text.windows(source, text.ByteTokenizer(), 50, 1).shape == (1, 50)
    with pytest.raises(ValueError, match="too short for one window of 50"):
        text.windows(b"short", text.ByteTokenizer(), 50, 1)


def test_quality_is_measured_on_what_calibration_never_sees():
    tokenizer = text.ByteTokenizer()
    calibration = text.calibration_windows(tokenizer, 256, 4)
    held_out = text.held_out_windows(tokenizer, 256, 4)
    assert calibration.shape == held_out.shape == (4, 256)
    training, texts = corpus.training_bytes(), b"\n".join(t for _, t in corpus.held_out_files())
    assert all(bytes(row[1:]) in training for row in calibration.tolist())
    assert all(bytes(row[1:]) in texts and bytes(row[1:]) not in training for row in held_out.tolist())


@pytest.mark.parametrize("sample", ["", "x = 1\n", "naïve 日本"])
def test_the_byte_tokenizer(sample):
    ids = text.ByteTokenizer().encode(sample)
    assert ids == [corpus.BOS, *sample.encode()] and text.ByteTokenizer().decode(ids) == sample


# --- the parts: decoding and quality ---


class Toy(torch.nn.Module):
    """Logits by a rule: `sure` for the token that follows in the alphabet, 0 for the other 127."""

    device = torch.device("cpu")

    def __init__(self, sure: float):
        super().__init__()
        self.sure = sure

    def forward(self, input_ids, use_cache):
        assert input_ids.shape[0] == 1 and not use_cache
        logits = torch.zeros(1, input_ids.shape[1], 128)
        logits.scatter_(2, (input_ids[..., None] + 1) % 128, self.sure)
        return type("Output", (), {"logits": logits})


@pytest.mark.parametrize("sure", [0.0, 3.0, 40.0])
def test_bits_per_byte_of_known_probabilities(sure):
    window = torch.arange(32, 96)  # ASCII: a token is a byte
    advanced = []
    quality = decoding.measure(Toy(sure), text.ByteTokenizer(), torch.stack([window, window]), advanced.append)
    assert advanced == [1, 1]
    wanted = math.log2(1 + 127 * math.exp(-sure))  # 7 bits for a uniform guess, nearly 0 for certainty
    assert quality.bits_per_byte == pytest.approx(wanted, rel=1e-5, abs=1e-9)
    assert quality.next_tokens.shape == (64,)
    if sure:
        assert torch.equal(quality.next_tokens, torch.cat([window[32:], window[32:]]))


def test_bits_are_shared_out_over_bytes():
    # Scored are é, a document's end and A: four tokens, of which the separator is no text.
    window = torch.tensor([corpus.BOS, *b"abc", *"é".encode(), corpus.BOS, *b"A"])

    class Uniform(Toy):
        def forward(self, input_ids, use_cache):
            return type("Output", (), {"logits": torch.zeros(1, input_ids.shape[1], 256)})

    quality = decoding.measure(Uniform(0), text.ByteTokenizer(), window[None], lambda _: None)
    assert quality.bits_per_byte == pytest.approx(8 * 4 / 3)


def test_the_share_of_equal_tokens():
    a, b = (decoding.Quality(1.0, torch.tensor(ids)) for ids in ([1, 2, 3, 4], [1, 0, 3, 5]))
    assert decoding.share_of_equal(a, b) == 0.5 and decoding.share_of_equal(a, a) == 1


def test_continuing_is_greedy_and_stops_at_the_end(generator):
    model = llama(generator, torch.float32)
    loaded = text.LoadedModel("toy", model, None)
    prompt = tokens(generator, 1, 6)[0].tolist()
    advanced = []
    result = decoding.continue_text(loaded, model, prompt, 10, advanced.append)
    assert len(result.ids) == 10 and advanced == [1] * 10 and result.tokens_per_second > 0
    ids = list(prompt)
    for token in result.ids:
        best = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        assert best[token] >= best.max() - 1e-3  # float32, other order of sums
        ids.append(token)

    end = result.ids[4]
    for eos in (end, [end, 9999]):
        model.generation_config.eos_token_id = eos
        stopped = decoding.continue_text(loaded, model, prompt, 10, lambda _: None)
        assert stopped.ids == result.ids[: result.ids.index(end) + 1]
    one = decoding.continue_text(loaded, model, prompt, 1, lambda _: None)
    assert one.ids == result.ids[:1] and math.isnan(one.tokens_per_second)
