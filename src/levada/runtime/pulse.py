"""The thread beside the step loop: it tells how far the job is and hears what it is to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from levada.runtime.channel import Channel, News
from levada.runtime.report import Report

#: The moving average forgets half of what it knew after so many seconds of steps.
_MEMORY_S = 5.0
#: Seconds that the last report may take when a worker leaves.
_GOODBYE_S = 2.0
_POLL_S = 0.005
#: Who stands still looks so many times as often.
_HURRY = 5


class Pulse:
    """Exchanges reports for news until it is ended. The latest value wins on both sides; nothing is ever queued."""

    def __init__(self, channel: Channel, describe: Callable[[], Report], heard: Callable[[News], None]) -> None:
        self._channel = channel
        self._describe = describe
        self._heard = heard
        self._ends = threading.Event()
        self._last = (0.0, 0.0)
        self._step_s = 0.0
        #: The worker stands still until it hears something new.
        self.hurries = False
        #: How often it has looked.
        self.looks = 0
        self.news = channel.news
        self._thread = threading.Thread(target=self._run, name="levada", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def restart_clock(self) -> None:
        """Training stood still until now: that is no step time."""
        self._last = (0.0, 0.0)

    def wait_for_news(self) -> None:
        """Returns when the supervisor was heard once; does not wait long for a server."""
        self._wait_for_looks(1)

    def flush(self) -> None:
        """Returns when what there is to tell now is told; does not wait long for a server."""
        self._wait_for_looks(self.looks + 2)

    def _wait_for_looks(self, looks: int) -> None:
        deadline = time.monotonic() + _GOODBYE_S
        while self.looks < looks and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def end(self) -> None:
        """Tells the last report and ends the thread; does not wait long for a server."""
        self._ends.set()
        self._thread.join(_GOODBYE_S)

    def _run(self) -> None:
        self._exchange(hurry=False)
        while not self._ends.wait(self._channel.pace_s / (_HURRY if self.hurries else 1)):
            self._exchange(hurry=False)
        self._exchange(hurry=True)

    def _exchange(self, hurry: bool) -> None:
        told = self._describe()
        self._measure(told.step)
        told = told._replace(at=time.time(), step_s=told.step_s or self._step_s, dropped=self._channel.dropped)
        self.news = self._channel.exchange(told, hurry)
        self.looks += 1
        self._heard(self.news)

    def _measure(self, step: float) -> None:
        now = time.monotonic()
        last_step, since = self._last
        if since and step > last_step:
            elapsed = now - since
            sample = elapsed / (step - last_step)
            weight = elapsed / (elapsed + _MEMORY_S) if self._step_s else 1.0
            self._step_s += weight * (sample - self._step_s)
        if not since or step != last_step:
            self._last = (step, now)
