"""Heartbeat thread: reports progress and receives instructions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from levada.runtime.channel import Channel, Instructions
from levada.runtime.report import ProgressReport

#: Seconds of steps after which an old step time has half of its weight in the moving average.
_HALF_LIFE_S = 5.0
#: Time limit of the last report when a worker leaves.
_FLUSH_S = 2.0
_POLL_S = 0.005
#: A worker that stands still exchanges this many times as often.
_FAST_FACTOR = 5


class HeartbeatThread:
    """Exchanges reports for instructions until `end`.

    The latest value wins on both sides; nothing is queued.
    """

    def __init__(
        self, channel: Channel, describe: Callable[[], ProgressReport], on_instructions: Callable[[Instructions], None]
    ) -> None:
        self._channel = channel
        self._describe = describe
        self._on_instructions = on_instructions
        self._ends = threading.Event()
        self._last = (0.0, 0.0)
        self._step_s = 0.0
        #: The worker stands still until it gets new instructions.
        self.fast = False
        #: Number of completed exchanges.
        self.exchanges = 0
        self.instructions = channel.instructions
        self._thread = threading.Thread(target=self._run, name="levada", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def restart_clock(self) -> None:
        """Exclude the time until now from the step time, since training stood still."""
        self._last = (0.0, 0.0)

    def wait_for_instructions(self) -> None:
        """Wait for the first instructions, at most 2 s."""
        self._wait_for_exchanges(1)

    def flush(self) -> None:
        """Wait until the current progress is reported, at most 2 s."""
        self._wait_for_exchanges(self.exchanges + 2)

    def _wait_for_exchanges(self, exchanges: int) -> None:
        deadline = time.monotonic() + _FLUSH_S
        while self.exchanges < exchanges and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def end(self) -> None:
        """Send the last report and end the thread; waits at most 2 s."""
        self._ends.set()
        self._thread.join(_FLUSH_S)

    def _run(self) -> None:
        self._exchange(urgent=False)
        while not self._ends.wait(self._channel.period_s / (_FAST_FACTOR if self.fast else 1)):
            self._exchange(urgent=False)
        self._exchange(urgent=True)

    def _exchange(self, urgent: bool) -> None:
        report = self._describe()
        self._measure(report.step)
        report = report._replace(at=time.time(), step_s=report.step_s or self._step_s, dropped=self._channel.dropped)
        self.instructions = self._channel.exchange(report, urgent)
        self.exchanges += 1
        self._on_instructions(self.instructions)

    def _measure(self, step: float) -> None:
        now = time.monotonic()
        last_step, since = self._last
        if since and step > last_step:
            elapsed = now - since
            sample = elapsed / (step - last_step)
            weight = elapsed / (elapsed + _HALF_LIFE_S) if self._step_s else 1.0
            self._step_s += weight * (sample - self._step_s)
        if not since or step != last_step:
            self._last = (step, now)
