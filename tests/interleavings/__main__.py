"""`python -m tests.interleavings SEED`: run one seed, print its log and its faults."""

from __future__ import annotations

import sys

from tests.interleavings.scenario import SeedRunner


def main() -> int:
    """Run one seed; return 0 without faults."""
    runner = SeedRunner()
    try:
        outcome = runner.run_seed(int(sys.argv[1]))
    finally:
        runner.close()
    print("\n".join([*outcome.log, *(f"FAULT: {fault}" for fault in outcome.faults)]))
    return int(bool(outcome.faults))


if __name__ == "__main__":
    sys.exit(main())
