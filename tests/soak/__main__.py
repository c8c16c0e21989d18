"""`make soak`: half of the time on SQLite, half on PostgreSQL; keeps the folder with all logs after a failure."""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.live.postgres import binaries, postgres
from tests.soak.clients import KINDS
from tests.soak.faults import fault_plan
from tests.soak.soak import Soak


def main() -> int:
    """Run the soak; return 0 without faults."""
    parser = argparse.ArgumentParser(prog="make soak")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument(
        "--store", choices=("sqlite", "postgres"), action="append", help="Use only this store (default: both)."
    )
    parser.add_argument("--kinds", default=",".join(KINDS), help="Kinds of jobs (tests/soak/worker.py).")
    options = parser.parse_args()
    stores = options.store or ["sqlite", *(["postgres"] if binaries() else [])]
    kinds = tuple(options.kinds.split(","))
    print(f"soak: seed {options.seed}, {options.minutes:g} min on {' and '.join(stores)}", flush=True)
    has_failed = False
    for store in stores:
        folder = Path(tempfile.mkdtemp(prefix=f"levada-soak-{store}-"))
        steps = fault_plan(options.seed, store == "postgres")
        (folder / "plan.txt").write_text("\n".join(str(next(steps)) for _ in range(int(60 * options.minutes) * 4)))
        print(f"{store}: fault plan in {folder}/plan.txt", flush=True)
        with postgres() if store == "postgres" else contextlib.nullcontext() as database:
            soak = Soak(
                folder / "world",
                options.seed,
                60.0 * options.minutes / len(stores),
                database,
                kinds=kinds,
                show=lambda line: print(line, flush=True),
            )
            faults = soak.run()
        print(f"{store}: {soak.summary()}")
        for fault in faults:
            print(f"  FAULT: {fault}")
        if faults:
            has_failed = True
            print(f"  see {folder}/world (ledger, faults.log, server.log, agent.log)")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if has_failed:
        print(f"repeat with: make soak SEED={options.seed} MINUTES={options.minutes:g}")
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
