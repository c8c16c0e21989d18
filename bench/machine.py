"""Run the stateful test of the engine for 100,000 steps."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from resource import RUSAGE_CHILDREN, getrusage

from bench.report import Printer, Record

MODULE = "tests.engine.random_walk"
STEPS, FEW_STEPS = 100_000, 2_000


def run(printer: Printer, *, quick: bool) -> None:
    """Run the stateful test in a subprocess and report its last line."""
    printer.title("Stateful test: random events against the invariants")
    if find_spec(MODULE) is None:
        printer.add(Record(bench="machine", what="machine", note=f"skipped: {MODULE} does not exist"))
        return
    steps = FEW_STEPS if quick else STEPS
    command = [sys.executable, "-m", MODULE, "--steps", str(steps)]
    before = getrusage(RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = getrusage(RUSAGE_CHILDREN).ru_utime - before
    lines = (done.stdout + done.stderr).strip().splitlines()
    printer.add(
        Record(
            bench="machine",
            what="machine",
            samples=steps,
            unit="s",
            p50=round(seconds, 1),
            ok=done.returncode == 0,
            note=lines[-1] if lines else "",
        )
    )
