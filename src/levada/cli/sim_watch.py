"""Progress display and Ctrl-C handling of a simulation."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from levada.cli.exit import ExitCode
from levada.cli.output import message

if TYPE_CHECKING:
    from levada.sim.run import Result, RunProgress
    from levada.sim.settings import Settings

#: Seconds between two updates of the progress line.
_UPDATE_S = 0.5
#: Calls between two reads of the clock.
_CALLS_PER_CHECK = 64


class SimWatch:
    """Show progress on a terminal, and stop the run cleanly on Ctrl-C; a second Ctrl-C aborts it."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._stop_requested = False
        self._calls = 0
        self._next = time.monotonic() + _UPDATE_S
        self._old_handlers: dict[int, Any] = {}

    def __enter__(self) -> SimWatch:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._old_handlers[number] = signal.signal(number, self._request_stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        if self._is_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __call__(self, progress: RunProgress) -> bool:
        """Update the display; return whether the run must stop."""
        self._calls += 1
        if self._is_terminal and self._calls % _CALLS_PER_CHECK == 0 and time.monotonic() >= self._next:
            self._next = time.monotonic() + _UPDATE_S
            of = "" if progress.of is None else f" of {progress.of:,}"
            sys.stderr.write(f"\r\x1b[K{progress.over:,}{of} jobs done, day {progress.now_s / 86400:,.1f}")
            sys.stderr.flush()
        return self._stop_requested

    def _request_stop(self, number: int, _frame: FrameType | None) -> None:
        if self._stop_requested:
            raise KeyboardInterrupt
        self._stop_requested = True


def run_watched(settings: Settings) -> Result:
    """Run a simulation with progress; an interrupt exits with a message and code 3."""
    from levada.sim.run import Interrupted, simulate

    try:
        with SimWatch() as watch:
            return simulate(settings, watch)
    except Interrupted as interrupted:
        hint = f"; run the same command to resume from {settings.checkpoint}" if settings.checkpoint is not None else ""
        message(f"levada: {interrupted}{hint}")
    except KeyboardInterrupt:
        message("levada: interrupted")
    raise typer.Exit(ExitCode.INTERRUPTED)


def prepare(settings: Settings) -> None:
    """Import modules and load kernels with a tiny simulation, to exclude them from the measured time.

    Shows a spinner if kernels must be compiled.
    """
    import msgspec

    from levada import jit
    from levada.cli.spinner import Spinner
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
        text = "compiling kernels (1 to 2 minutes, first run only)"
        with Spinner(text) if jit.is_compiled() and not jit.is_ready() else nullcontext():
            simulate(tiny)
    except KeyboardInterrupt:
        unsaved = "" if settings.checkpoint is None else f"; no checkpoint was written to {settings.checkpoint}"
        message(f"levada: interrupted before the simulation started{unsaved}")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
