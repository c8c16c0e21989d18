"""What stands between a simulation and the person at the terminal: progress, and Ctrl-C."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from levada.cli.exit import ExitCode
from levada.cli.output import chatter

if TYPE_CHECKING:
    from levada.sim.run import Progress, Result
    from levada.sim.settings import Settings

#: Seconds between two lines of progress.
_EVERY_S = 0.5
#: The clock is looked at once in so many moments.
_SELDOM = 64


class Watch:
    """Shows progress on a terminal, and tells a run to stop in good order; a second Ctrl-C does not wait for that."""

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()
        self._asked = False
        self._calls = 0
        self._next = time.monotonic() + _EVERY_S
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Watch:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._shows:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __call__(self, progress: Progress) -> bool:
        """Whether the run shall stop."""
        self._calls += 1
        if self._shows and self._calls % _SELDOM == 0 and time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_S
            of = "" if progress.of is None else f" of {progress.of:,}"
            sys.stderr.write(f"\r\x1b[K{progress.over:,}{of} jobs done, day {progress.now_s / 86400:,.1f}")
            sys.stderr.flush()
        return self._asked

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True


def watched(settings: Settings) -> Result:
    """The result of a simulation; one that is interrupted ends with a line and exit code 3."""
    from levada.sim.run import Interrupted, simulate

    try:
        with Watch() as watch:
            return simulate(settings, watch)
    except Interrupted as interrupted:
        more = f"; the same command goes on from {settings.checkpoint}" if settings.checkpoint is not None else ""
        chatter(f"levada: {interrupted}{more}")
    except KeyboardInterrupt:
        chatter("levada: interrupted")
    raise typer.Exit(ExitCode.INTERRUPTED)


def prepare(settings: Settings) -> None:
    """Loads what the simulation will need, and runs a tiny one, so that its figures are without that.

    Where that takes long, whoever waits is told so.
    """
    import msgspec

    from levada import jit
    from levada.cli.waiting import Waiting
    from levada.sim.kernel_choice import choose_kernels
    from levada.sim.metrics import ALL
    from levada.sim.run import simulate
    from levada.sim.settings import check

    check(settings)
    tiny = msgspec.structs.replace(
        settings,
        cluster={"v100": 2, "k80": 2},
        gpus_per_node={},
        trace=None,
        workload="gavel",
        jobs=6,
        rate=4.0,
        fixed_duration_s=1800.0,
        multi_gpu=False,
        steady_state=False,
        throughputs=None,
        profiling=1.0,
        reference_models=None,
        window=ALL,
        prices={},
        prices_dir=None,
        failures_every_s=None,
        rounds=None,
        checkpoint=None,
    )
    try:
        choose_kernels(settings)
        text = "getting ready (a minute or two the first time, while kernels are compiled)"
        with Waiting(text) if jit.is_compiled() and not jit.is_ready() else nullcontext():
            simulate(tiny)
    except KeyboardInterrupt:
        kept = "" if settings.checkpoint is None else f", and nothing is kept in {settings.checkpoint}"
        chatter(f"levada: interrupted while getting ready: the simulation had not begun{kept}")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
