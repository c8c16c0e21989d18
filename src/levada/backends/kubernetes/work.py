"""Keyed work queue, and expectations that prevent repeated writes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from levada.errors import LevadaError

_log = logging.getLogger(__name__)
#: Delays after failures: from, to.
_BACKOFF_S = (0.05, 30.0)
#: An expectation that is not met after this time is dropped, and the action is repeated.
_EXPECTED_WITHIN_S = 30.0


def backoff(failures: int, first_s: float = _BACKOFF_S[0], most_s: float = _BACKOFF_S[1]) -> float:
    """The delay after this number of failures in a row, which doubles; with 50 % jitter."""
    return float(min(most_s, first_s * 2 ** min(failures - 1, 20)) * random.uniform(0.5, 1.0))


class WorkQueue:
    """Runs `handle(key)` for keys that were added: one at a time per key, at most *parallel* at once.

    A key that is added while it is handled is handled again. `handle` returns seconds until it is repeated, or None.
    After an exception it is repeated with a growing delay; the exception is logged when its text changes.
    """

    def __init__(self, handle: Callable[[str], Awaitable[float | None]], parallel: int = 32) -> None:
        self._handle = handle
        self._slots = asyncio.Semaphore(parallel)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, tuple[int, str]] = {}
        self._is_closed = False

    def add(self, key: str, delay_s: float = 0.0) -> None:
        """Handle *key* soon, or after a delay if nothing else asks for it before."""
        if self._is_closed:
            return
        timer = self._timers.get(key)
        if timer is not None and key in self._failures:
            return  # changes do not shorten a backoff
        if delay_s > 0:
            loop = asyncio.get_running_loop()
            if timer is not None:
                if timer.when() <= loop.time() + delay_s:
                    return
                timer.cancel()
            self._timers[key] = loop.call_later(delay_s, self._fire, key)
            return
        if timer is not None:
            timer.cancel()
        self._fire(key)

    def _fire(self, key: str) -> None:
        self._timers.pop(key, None)
        if key in self._tasks:
            self._again.add(key)
        else:
            self._tasks[key] = asyncio.create_task(self._work(key))

    async def _work(self, key: str) -> None:
        try:
            async with self._slots:
                delay = await self._attempt(key)
        finally:
            del self._tasks[key]
        if key in self._again:
            self._again.discard(key)
            self.add(key)
        elif delay is not None:
            self.add(key, max(delay, 0.001))

    async def _attempt(self, key: str) -> float | None:
        try:
            delay = await self._handle(key)
        except Exception as error:
            failures, text = self._failures.get(key, (0, ""))
            self._failures[key] = (failures + 1, str(error))
            if text != str(error):
                _log.warning("cannot reconcile %s: %s", key, error, exc_info=not isinstance(error, LevadaError))
            self._again.discard(key)
            return backoff(failures + 1)
        self._failures.pop(key, None)
        return delay

    async def close(self) -> None:
        """Stop; a handler under way is cancelled."""
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Expectations:
    """Writes that the cache does not show yet, by uid: an action is not repeated because the cache is behind."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def expect(self, uid: str) -> None:
        """Remember that the object with this uid was changed."""
        self._until[uid] = asyncio.get_running_loop().time() + _EXPECTED_WITHIN_S

    def met(self, uid: str) -> None:
        """Forget an expectation: the cache shows a change of the object, or its end."""
        self._until.pop(uid, None)

    def pending(self, uid: str) -> bool:
        """Whether a change of this object is expected."""
        until = self._until.get(uid)
        return until is not None and asyncio.get_running_loop().time() < until
