"""The README: its example runs as it stands, and it is short."""

import os
import re
import subprocess
import sys
from pathlib import Path

from simulator.tests.harness import needs_clang

README = Path(__file__).resolve().parents[1] / "README.md"


@needs_clang
def test_the_example_runs(tmp_path):
    (example,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    environment = os.environ | {"PYTHONPATH": str(README.parents[1])}
    run = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("[0. 2. 4. 6.]\n")
    assert re.search(r"^workgroups +4, of 4 waves$", run.stdout, re.MULTILINE)
    assert re.search(r"^estimate +\d\.\d\d us, bound by latency", run.stdout, re.MULTILINE)


def test_it_is_short():
    lines = README.read_text().splitlines()
    assert len(lines) <= 130 and max(map(len, lines)) <= 200
