"""`vllm serve` and a real HTTP client."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .cases import text
from .conftest import byte_tokenizer, likely
from .settings import ENGINE

MODEL = "byte-llama-fp8"


class Server:
    def __init__(self, directory: Path, log: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        options = [word for name, value in ENGINE.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        options += ["--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", MODEL, "--enforce-eager"]
        options += ["--worker-extension-cls", "rocm_fp8_vllm.worker.Counters", "--generation-config", "vllm"]
        command = [str(Path(sys.executable).with_name("vllm")), "serve", str(directory), *options]
        # The development mode serves /collective_rpc.
        environment = os.environ | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)

    def request(self, path: str, body: dict | None = None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        return urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers), timeout=600
        )

    def json(self, path: str, body: dict | None = None):
        with self.request(path, body) as answer:
            return json.load(answer)

    def wait(self, seconds: float = 900) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                self.request("/health").close()
                return
            except OSError:
                time.sleep(0.5)
        raise AssertionError(f"the server did not start:\n{self.log.read_text()[-4000:]}")

    def counts(self) -> dict[str, int]:
        (only,) = self.json("/collective_rpc", {"method": "rocm_fp8_call_counts"})["results"]
        return only

    def running(self) -> float:
        with self.request("/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{"))


@pytest.fixture(scope="module")
def server(checkpoint, tmp_path_factory):
    byte_tokenizer(checkpoint("dynamic"))
    started = Server(checkpoint("dynamic"), tmp_path_factory.mktemp("server") / "log")
    try:
        started.wait()
        yield started
    finally:
        started.process.terminate()
        started.process.wait(60)


def completion(prompt: str, **arguments) -> dict:
    return dict(model=MODEL, prompt=prompt, temperature=0, ignore_eos=True) | arguments


def test_several_requests_at_once_are_answered_as_transformers_would(server, reference):
    code = bytes(text(1, 2048)[0].tolist()).decode()
    prompts = [code[:300], code[400:403], code[500:540], code[600:650]]
    before = server.counts()
    with ThreadPoolExecutor(len(prompts)) as clients:
        answers = list(clients.map(lambda p: server.json("/v1/completions", completion(p, max_tokens=40)), prompts))
    right = []
    for prompt, answer in zip(prompts, answers):
        assert answer["usage"] == answer["usage"] | {"prompt_tokens": len(prompt), "completion_tokens": 40}
        tokens, given = list(answer["choices"][0]["text"].encode()), list(prompt.encode())
        assert len(tokens) == 40
        right += likely(reference("dynamic"), given, tokens)
    assert sum(right) / len(right) >= 0.98
    after = server.counts()
    for operator in ("skinny_gemm", "quantize_fp8", "add_rms_norm_dynamic_fp8", "swiglu_dynamic_fp8"):
        assert after[operator] > before[operator]


def test_an_aborted_request_ends_and_leaves_the_others_alone(server, reference):
    """A client that goes away in the middle of a stream, beside one that stays."""
    prompt, answers = "def quantize(", []
    stays = completion(prompt, max_tokens=60)
    other = threading.Thread(target=lambda: answers.append(server.json("/v1/completions", stays)))
    with server.request("/v1/completions", completion("import ", max_tokens=450, stream=True)) as stream:
        assert stream.readline().startswith(b"data: ")
        other.start()
        for _ in range(10):
            stream.readline()
    other.join(600)
    tokens = list(answers[0]["choices"][0]["text"].encode())
    assert len(tokens) == 60
    right = likely(reference("dynamic"), list(prompt.encode()), tokens)
    assert sum(right) / len(right) >= 0.98
    end = time.monotonic() + 300
    while server.running() and time.monotonic() < end:
        time.sleep(0.1)
    assert server.running() == 0
    counts = server.counts()
    time.sleep(0.5)
    assert server.counts() == counts  # nothing is computed for the one that left
