"""`python -m tests.interleavings SEED`: runs one seed, and prints what happened and what is wrong."""

from __future__ import annotations

import sys

from tests.interleavings.scenario import SeedRunner


def main() -> int:
    """The exit code: 0 where nothing is wrong."""
    runner = SeedRunner()
    try:
        outcome = runner.run_seed(int(sys.argv[1]))
    finally:
        runner.close()
    print("\n".join([*outcome.log, *(f"WRONG: {fault}" for fault in outcome.faults)]))
    return int(bool(outcome.faults))


if __name__ == "__main__":
    sys.exit(main())
