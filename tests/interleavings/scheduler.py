"""An event loop for tests: a seed decides the order of all tasks, and time is virtual.

Any ready callback may run next. Work for threads (`run_in_executor`, `to_thread`, `threading.Thread`) runs in this
thread as two steps, the effect and its result, each after a delay by the seed: a server can be stopped, and processes
can end, between any check and its use. When nothing is ready, time advances to the next timer, so that hours take
milliseconds. While the loop runs, the clocks of `time` show its time.

Callbacks belong to the process (a name) that was current at their creation. A process can be killed, which drops all
its callbacks without running any `finally`, or frozen and released.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")
#: Start of virtual time (Unix time).
_EPOCH = 1_700_000_000.0
#: Maximum delays of a step of a thread; most are 0.
_DELAYS_S = (0.0, 0.0, 0.0, 0.0, 0.001, 0.01, 0.1, 0.5, 3.0)
#: A seed that needs more steps is treated as endless.
_MOST_STEPS = 200_000

_process: contextvars.ContextVar[str] = contextvars.ContextVar("process", default="")


class SeededLoop(asyncio.BaseEventLoop):
    """Runs callbacks in an order decided by *seed*. *trace* collects their names."""

    def __init__(self, seed: int, trace: list[str] | None = None) -> None:
        super().__init__()
        self.chance = random.Random(seed)
        self._trace = trace
        self._now = 0.0
        self._killed: set[str] = set()
        self._frozen: set[str] = set()
        self._held: list[asyncio.Handle] = []
        self._tasks: list[tuple[str, asyncio.Task[Any]]] = []
        self._order = 0
        self.set_task_factory(self._make_task)
        #: Exceptions of callbacks without a caller.
        self.unhandled: list[BaseException] = []
        self.set_exception_handler(self._record_unhandled)

    # --- processes ------------------------------------------------------------------------------------------------

    def spawn(self, process: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run *work* in *process*."""
        context = contextvars.copy_context()
        context.run(_process.set, process)
        return self.create_task(work, context=context)

    def after(self, process: str, delay_s: float, act: Callable[[], object]) -> None:
        """Call *act* in *process* after a delay."""
        context = contextvars.copy_context()
        context.run(_process.set, process)
        self.call_later(delay_s, act, context=context)

    def kill(self, process: str) -> None:
        """Drop all callbacks of *process*: none of its code runs again."""
        self._killed.add(process)

    def freeze(self, process: str) -> None:
        """Freeze *process* until it is released; its timers still expire."""
        self._frozen.add(process)

    def release(self, process: str) -> None:
        """Resume a frozen process."""
        self._frozen.discard(process)
        held, self._held = self._held, []
        self._ready.extend(held)

    # --- threads --------------------------------------------------------------------------------------------------

    def run_in_executor(self, _executor: Any, work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """The result of *work*, which runs in this thread after a random delay."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            try:
                result: Any = work(*arguments)
                deliver = future.set_result
            except BaseException as error:
                result, deliver = error, future.set_exception
            self._call_randomly(lambda: None if future.done() else deliver(result))

        self._call_randomly(run)
        return future

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *arguments: Any, context: Any = None
    ) -> asyncio.Handle:
        """`call_soon`: there are no other threads."""
        return self.call_soon(callback, *arguments, context=context)

    def _call_randomly(self, act: Callable[[], object]) -> None:
        delay_s = self.chance.choice(_DELAYS_S) * self.chance.random()
        if delay_s:
            self.call_later(delay_s, act)
        else:
            self.call_soon(act)

    # --- the loop -------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        """Run one random ready callback; overrides the order of asyncio."""
        self._take_due()
        while not self._ready:
            # A cancelled timer does not advance time.
            while self._scheduled and self._scheduled[0]._cancelled:
                heapq.heappop(self._scheduled)._scheduled = False
            if not self._scheduled:
                raise AssertionError("deadlock: every task waits forever")
            self._now = max(self._now, self._scheduled[0]._when)
            self._take_due()
        at = int(self.chance.random() * len(self._ready))
        handle = self._ready[at]
        del self._ready[at]
        process = handle._context.get(_process, "")
        if handle._cancelled or process in self._killed:
            return
        if process in self._frozen:
            self._held.append(handle)
            return
        self._order += 1
        assert self._order < _MOST_STEPS, "this seed is endless"
        if self._trace is not None:
            self._trace.append(f"{self._now:.6f} {process} {_name(handle)}")
        handle._run()

    def _take_due(self) -> None:
        while self._scheduled and self._scheduled[0]._when <= self._now:
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False
            if not timer._cancelled:
                self._ready.append(timer)

    def _record_unhandled(self, _loop: object, context: dict[str, Any]) -> None:
        if "handle" in context and "exception" in context:
            self.unhandled.append(context["exception"])

    def _asyncgen_finalizer_hook(self, _generator: Any) -> None:
        """Do not run generators of a killed process."""

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, _events: Any) -> None:
        pass

    def _make_task(self, _loop: Any, work: Coroutine[Any, Any, T], **arguments: Any) -> asyncio.Task[T]:
        context = arguments.get("context") or contextvars.copy_context()
        task = asyncio.Task(work, loop=self, **{**arguments, "context": context})
        self._tasks.append((context.get(_process, ""), task))
        return task

    def abandon(self) -> None:
        """Close all remaining coroutines, so that none of them runs in the next test."""
        self._ready.clear()
        self._scheduled.clear()
        self._held.clear()
        self.close()
        for _, task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False
                with contextlib.suppress(BaseException):
                    task.get_coro().close()
        self._tasks.clear()


def _name(handle: asyncio.Handle) -> str:
    """The task or function of a callback, for a trace."""
    owner = getattr(handle._callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(getattr(owner.get_coro(), "__qualname__", "task"))
    return str(getattr(handle._callback, "__qualname__", "callback"))


class _Thread:
    """Replacement of `threading.Thread` that runs its target as a step of the loop."""

    def __init__(self, target: Callable[..., object], args: tuple[Any, ...] = (), **_: Any) -> None:
        self._work = lambda: target(*args)

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        loop._call_randomly(self._work)


@contextlib.contextmanager
def _virtual(loop: SeededLoop) -> Iterator[None]:
    """Patch clocks to the time of *loop* and threads to its steps."""

    def wall() -> float:
        return _EPOCH + loop.time()

    def counted(_clock: int) -> float:
        return loop.time()

    with (
        mock.patch.object(time, "time", wall),
        mock.patch.object(time, "monotonic", loop.time),
        mock.patch.object(time, "clock_gettime", counted),
        mock.patch.object(threading, "Thread", _Thread),
    ):
        yield


def run(seed: int, main: Callable[[SeededLoop], Coroutine[Any, Any, T]], trace: list[str] | None = None) -> T:
    """Run *main* under the order of *seed*; return its result."""
    loop = SeededLoop(seed, trace)
    try:
        with _virtual(loop):
            asyncio.set_event_loop(loop)
            return loop.run_until_complete(loop.spawn("test", main(loop)))
    finally:
        asyncio.set_event_loop(None)
        loop.abandon()
