"""What else vLLM does: beams, embeddings, a cache of compiled graphs for engines with the plugin and without."""

import json
import os
import subprocess
import sys

import pytest
import torch

from .cases import text
from .conftest import by_reference, byte_tokenizer
from .settings import ENGINE, ON_CPU, ROOT


@pytest.fixture(scope="module")
def started(engine, checkpoint):
    """started(...) -> an engine on "dynamic" with a tokenizer, which these uses ask for."""
    byte_tokenizer(checkpoint("dynamic"))
    return lambda **arguments: engine("dynamic", enforce_eager=True, skip_tokenizer_init=False, **arguments)


def test_beams_have_the_likelihood_that_transformers_gives_them(started, reference):
    from vllm.sampling_params import BeamSearchParams

    prompt, length = text(1, 30)[0].tolist(), 8
    parameters = BeamSearchParams(beam_width=3, max_tokens=length, ignore_eos=True)
    (output,) = started().beam_search([{"prompt_token_ids": prompt}], parameters)
    assert len({tuple(beam.tokens) for beam in output.sequences}) == 3
    for beam in output.sequences:
        tokens = list(beam.tokens)
        assert tokens[: len(prompt)] == prompt and len(tokens) == len(prompt) + length
        _, bits = by_reference(reference("dynamic"), torch.tensor([tokens]))
        nats = bits[0, len(prompt) - 1 :].sum() * torch.log(torch.tensor(2.0))
        # As in test_engine.py a byte's information moves by 0.1 nats (standard deviation): four of eight bytes' sum.
        assert abs(beam.cum_logprob + nats) <= 4 * 0.1 * length**0.5


def test_embeddings_are_the_last_hidden_state(started, reference):
    ids = text(4, 150)
    outputs = started(runner="pooling").embed([{"prompt_token_ids": row.tolist()} for row in ids], use_tqdm=False)
    given = torch.tensor([output.outputs.embedding for output in outputs])
    with torch.no_grad():
        expected = reference("dynamic").model(input_ids=ids, use_cache=False).last_hidden_state[:, -1].float()
    near = torch.nn.functional.normalize(given, dim=1) @ torch.nn.functional.normalize(expected, dim=1).t()
    # FP8 rounds to 1/16 at most. Half of that, in another direction, is a cosine of 0.998.
    assert near.diagonal().min() >= 0.99
    assert (near - 2 * torch.eye(4)).max() < 0.95  # another text's is not so near


PROGRAM = """
import json, sys
from vllm import LLM
from integrations.vllm.tests.cases import text
from integrations.vllm.tests.conftest import quick_starts, teacher_forced
from integrations.vllm.tests.steps import counts

if __name__ == "__main__":
    quick_starts()
    llm = LLM(sys.argv[1], skip_tokenizer_init=True, worker_extension_cls="rocm_fp8_vllm.worker.Counters",
              **json.loads(sys.argv[2]))
    _, bits = teacher_forced(llm, text(2, 100))
    print("RESULT", json.dumps([bits.tolist(), counts(llm)]))
"""


def test_plugin_and_no_plugin_share_a_cache_of_compiled_graphs(checkpoint, tmp_path):
    """On, off, on, with one folder: each run has its own graphs, and the third the first one's bits."""
    results = []
    for switch in ("1", "0", "1"):
        changes = dict(ROCM_FP8_KERNELS_VLLM=switch, VLLM_CACHE_ROOT=str(tmp_path))
        changes["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-c", PROGRAM, str(checkpoint("one layer")), json.dumps(ENGINE)]
        run = subprocess.run(command, env=os.environ | changes, capture_output=True, text=True, timeout=900)
        assert run.returncode == 0, run.stderr[-4000:]
        (line,) = (line for line in run.stdout.splitlines() if line.startswith("RESULT "))
        results.append(json.loads(line.removeprefix("RESULT ")))
    (first, launched), (off, without), (again, launched_again) = results
    assert launched and not without
    # On a GPU an engine that compiles calls them more often before it captures its graphs.
    assert launched == launched_again if ON_CPU else launched.keys() == launched_again.keys()
    assert first == again
    assert (torch.tensor(first) - torch.tensor(off)).abs().mean() < 0.5
