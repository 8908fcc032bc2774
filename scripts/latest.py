#!/usr/bin/env python3
"""Raises the pins of requirements-latest.txt to the newest releases, and installs them: ENV/bin/python latest.py

The environment of the interpreter that runs this gets the newest release of each package that the file names.
"""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "requirements-latest.txt"
PIN = re.compile(r"^([\w-]+)==\S+$", re.MULTILINE)


def main() -> None:
    text = FILE.read_text(encoding="utf-8")
    names = PIN.findall(text)
    options = ["--disable-pip-version-check", "-q", "--upgrade", "--upgrade-strategy", "eager"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *names], check=True)
    raised = PIN.sub(lambda found: f"{found[1]}=={importlib.metadata.version(found[1])}", text)
    FILE.write_text(raised, encoding="utf-8")


if __name__ == "__main__":
    main()
