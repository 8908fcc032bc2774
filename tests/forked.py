"""Programs that need a process of their own and torch: forks of one that has imported it, which takes seconds."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

from tests.settings import ROOT

# A line of input is [environment, code, arguments]; the answer is [exit code, standard output, standard error] of a
# child. The package is loaded in the child.
SERVER = """
import json, os, sys, tempfile, traceback, torch
import kernels, torch._dynamo  # what loading the package imports

def run(environment, code, arguments):
    os.environ.update(environment)
    sys.argv[1:] = arguments
    try:
        exec(code, {"__name__": "__main__"})
        return 0
    except BaseException:
        traceback.print_exc()
        return 1

for line in sys.stdin:
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            code = run(*json.loads(line))
            sys.stdout.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        errors.seek(0)
        print(json.dumps([code, output.read(), errors.read()]), flush=True)
"""


@contextlib.contextmanager
def forking_process(without: tuple[str, ...]) -> Iterator[Callable[..., str]]:
    """run(program, *arguments, **environment) -> what the program printed, in a child. Of the variables `without` the
    child has those that are given. It must end with 0; a negative exit code is a signal."""
    base = {key: value for key, value in os.environ.items() if key not in without} | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", SERVER]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen(command, cwd=ROOT, env=base, **pipes) as process:

        def run(program: str, *arguments: str, **environment: str) -> str:
            print(json.dumps([environment, program, arguments]), file=process.stdin, flush=True)
            code, output, errors = json.loads(process.stdout.readline())
            assert code == 0, f"{environment}: exit {code}\n{errors[-2000:]}"
            return output

        yield run
        process.stdin.close()
