"""The stateful machine over the engine, for as many steps as the issue of its laws asks for."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from resource import RUSAGE_CHILDREN, getrusage

from bench.report import Printer, Record

MODULE = "tests.engine.machine"
STEPS, FEW_STEPS = 100_000, 2_000


def run(printer: Printer, *, quick: bool) -> None:
    """Runs the machine in a process of its own; what it says of a fault is shown."""
    printer.title("The stateful machine: random events against the invariants")
    if find_spec(MODULE) is None:
        printer.add(Record(bench="machine", what="machine", note=f"skipped: there is no {MODULE}"))
        return
    steps = FEW_STEPS if quick else STEPS
    command = [sys.executable, "-m", MODULE, "--steps", str(steps)]
    before = getrusage(RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = getrusage(RUSAGE_CHILDREN).ru_utime - before
    said = (done.stdout + done.stderr).strip().splitlines()
    printer.add(
        Record(
            bench="machine",
            what="machine",
            samples=steps,
            unit="s",
            p50=round(seconds, 1),
            ok=done.returncode == 0,
            note=said[-1] if said else "",
        )
    )
