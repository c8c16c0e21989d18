"""Run a test bed in the foreground: `python -m tests.kubernetes.testbed --nodes a100=8x50,v100=8x50`."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys

from tests.kubernetes.testbed.bed import Bed
from tests.kubernetes.testbed.build import CannotBuild, build


def main() -> int:
    """Build it if necessary, start it, print `{"kubeconfig": …}` and wait for Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.testbed", description=__doc__)
    parser.add_argument("--nodes", default="a100=8x4", help="Fake nodes as TYPE=GPUSxNODES,... (default: %(default)s).")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            built = build()
        except CannotBuild as error:
            print(f"testbed: {error}", file=sys.stderr)
            return 1
        with Bed(built) as bed:
            bed.nodes(arguments.nodes)
            print(json.dumps({"kubeconfig": str(bed.kubeconfig)}), flush=True)
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
