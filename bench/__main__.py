"""`python -m bench [decide|events|state|sim|traces|runtime|live|machine|all|sim-large] [--quick] [-o table|json]`."""

from __future__ import annotations

import argparse

from bench import decide, events, live, machine, pauses, runtime, sim, state, traces
from bench.report import Printer
from levada import jit

PARTS = ("decide", "events", "state", "sim", "traces", "runtime", "live", "machine")
#: Runs only if named.
LONG = "sim-large"


def main() -> None:
    """Run the selected parts, by default all."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure CPU times of Levada.")
    parser.add_argument("part", nargs="?", choices=(*PARTS, "all", LONG), default="all")
    parser.add_argument("--quick", action="store_true", help="Take fewer samples.")
    parser.add_argument("--kernels", choices=("compiled", "interpreted", "both"), default="both")
    parser.add_argument("--policy", action="append", default=[], help="Measure only this policy (decide); repeatable.")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    printer = Printer(as_json=options.output == "json")
    wanted = PARTS if options.part == "all" else (options.part,)
    if "decide" in wanted:
        only = frozenset(options.policy)
        decide.run(printer, _implementations(options.kernels), quick=options.quick, only=only)
    if "events" in wanted:
        events.run(printer, quick=options.quick)
    if "state" in wanted:
        state.run(printer, quick=options.quick)
    if "sim" in wanted:
        sim.run(printer, quick=options.quick)
    if "traces" in wanted:
        traces.run(printer, quick=options.quick)
    if "runtime" in wanted:
        runtime.run(printer, quick=options.quick)
        pauses.run(printer, quick=options.quick)
    if "live" in wanted:
        live.run(printer, quick=options.quick)
    if LONG in wanted:
        sim.run_large(printer)
    if "machine" in wanted:
        machine.run(printer, quick=options.quick)
    printer.end()


def _implementations(choice: str) -> list[str]:
    if choice == "both":
        return ["compiled", "interpreted"] if jit.is_available() else ["interpreted"]
    return [choice]


if __name__ == "__main__":
    main()
