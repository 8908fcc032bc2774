"""python -m tests.hub: a Hub on the loopback device, until Ctrl-C.

Prints what a client's environment needs. What is published stays in the folder that --state names."""

import argparse
import tempfile
import threading
from pathlib import Path

from tests.hub.server import TOKEN, Hub


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8440)
    parser.add_argument("--state", type=Path, help="folder of the repositories (default: a temporary one)")
    parser.add_argument("--trust", action="append", default=[], metavar="PUBLISHER", help="load it without asking")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        hub = Hub(args.state or Path(temporary), trusted=set(args.trust)).start(args.port)
        for name, value in hub.environment(TOKEN).items():
            print(f"export {name}={value}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            hub.stop()


if __name__ == "__main__":
    main()
