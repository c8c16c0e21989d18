"""Execute engine commands: backend operations, policy runs, wake-up timer.

Commands reach the executor only after their turn is stored. Their results return to the loop as requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from levada.backends.clock import Clock
from levada.backends.protocol import ClusterBackend, Note, Seen
from levada.core.commands import BindPods, Command, Decide, JobsEnded, StopStray, Wake
from levada.core.events import Decided, DecideFailed, OperationFailed, Tick
from levada.core.job import Phase
from levada.core.plan import Op, OpKind
from levada.engine import Engine, run_policy
from levada.errors import LevadaError
from levada.live.records import JobRecords
from levada.live.requests import Request

_log = logging.getLogger(__name__)

#: The timer is set for at most this long, then set again.
_MAX_SLEEP_S = 3600.0


class OpDispatcher:
    """Queue of stored operations; one task gives them to the backend in order.

    To start a worker takes some milliseconds of disk and kernel time, which new requests must not wait for.
    """

    def __init__(self, apply: Callable[[Op], Awaitable[None]], is_loop_busy: Callable[[], bool]) -> None:
        self._apply, self._is_loop_busy = apply, is_loop_busy
        self._ops: deque[Op] = deque()
        self._wakeup = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ops)

    def add(self, ops: Iterable[Op]) -> None:
        """Queue stored operations; a Stop removes queued operations of its job."""
        new_ops = list(ops)
        stopped = {op.job for op in new_ops if op.kind == OpKind.STOP}
        if stopped and len(self._ops) > 1:
            # The backend may already have the first one.
            first = self._ops.popleft()
            self._ops = deque([first, *(op for op in self._ops if op.job not in stopped)])
        self._ops.extend(new_ops)
        if self._ops:
            self._wakeup.set()

    async def run(self, on_empty: Callable[[], None]) -> None:
        """Apply operations until cancelled; calls *on_empty* whenever the queue becomes empty."""
        clock = asyncio.get_running_loop().time
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._ops:
                began = clock()
                await self._apply(self._ops[0])
                self._ops.popleft()
                # While requests wait, leave them half of the time.
                await asyncio.sleep(clock() - began if self._is_loop_busy() else 0.0)
            on_empty()


async def run_policy_in_thread(question: Decide, limit_s: float) -> Decided | DecideFailed:
    """Run the policy on a detached snapshot; a run of more than *limit_s* seconds has failed.

    A thread that hangs cannot be stopped. It is a daemon, so that it does not keep the server from exiting.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Decided | DecideFailed] = loop.create_future()

    def set_result(result: Decided | DecideFailed) -> None:
        if not done.done():
            done.set_result(result)

    def work() -> None:
        began = time.monotonic()
        result = run_policy(question, 0.0)
        if isinstance(result, Decided):
            result = msgspec.structs.replace(result, took_s=time.monotonic() - began)
        with contextlib.suppress(RuntimeError):  # the event loop may be closed by now
            loop.call_soon_threadsafe(set_result, result)

    threading.Thread(target=work, name=f"decision {question.revision}", daemon=True).start()
    try:
        return await asyncio.wait_for(done, limit_s)
    except TimeoutError:
        why = f"it did not decide within {limit_s:g} s"
        return DecideFailed(at=0.0, revision=question.revision, why=why)


class CommandExecutor:
    """Carries out the commands of stored turns."""

    def __init__(
        self,
        engine: Engine,
        backend: ClusterBackend,
        clock: Clock,
        records: JobRecords,
        enqueue: Callable[[Request], None],
        is_loop_busy: Callable[[], bool],
    ) -> None:
        """*enqueue*: adds a request to the next turn; *is_loop_busy*: whether requests wait for a turn."""
        self.engine, self.backend, self.clock, self._records = engine, backend, clock, records
        self._enqueue = enqueue
        #: Operations that the backend does not have yet.
        self.ops = OpDispatcher(self.dispatch, is_loop_busy)
        #: Policy runs in progress.
        self.policy_tasks: set[asyncio.Task[None]] = set()
        #: Calls of the backend in progress that are not operations.
        self._calls: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._strays: dict[int, tuple[str, int]] = {}

    def expect_strays(self, running: Mapping[str, Seen]) -> None:
        """Remember what the backend runs at the start, so that a `StopStray` can name its job and generation."""
        self._strays = {seen.number: (job, seen.generation) for job, seen in running.items()}

    def execute(self, commands: Sequence[Command], questions: Sequence[Decide], ops: Sequence[Op]) -> None:
        """Carry out the commands of a stored turn; *questions* and *ops* are its detached snapshots and operations."""
        self.ops.add(ops)
        for command in commands:
            match command:
                case Wake():
                    self._set_timer(command.at)
                case StopStray():
                    self.ops.add(self._stops(command.number))
                case BindPods():
                    nodes = self.engine.query.cluster.nodes
                    self._call(self.backend.bind, [(bind.pod, nodes[bind.node]) for bind in command.binds])
                case JobsEnded() if self.backend.capabilities.runs_manifests:
                    for job, phase in zip(command.id, command.phase.tolist(), strict=True):
                        self._call(self.backend.ended, job, Phase.label(phase))
                case _:
                    pass
        for question in questions:
            task = asyncio.create_task(self._decide(question))
            self.policy_tasks.add(task)
            task.add_done_callback(self.policy_tasks.discard)

    def cancel(self) -> None:
        """Cancel policy runs and the timer."""
        for task in (*self.policy_tasks, *self._calls):
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _call(self, call: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Run a call of the backend that the turn does not wait for; an error is logged."""

        async def run() -> None:
            try:
                await call(*arguments)
            except Exception as error:
                _log.warning("backend call failed: %s: %s", call.__name__, error)

        task = asyncio.create_task(run())
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def dispatch(self, op: Op) -> None:
        """Give an operation to the backend; an error of the backend becomes an `OperationFailed`."""
        record = self._records.by_id.get(op.job)
        launch = None if record is None else record.about.launch
        try:
            if launch is None and op.kind != OpKind.STOP:
                raise LevadaError("the command of this job is unknown")
            if launch is not None:
                launch = msgspec.structs.replace(launch, seconds=self._seconds_left(op.job))
            if launch is not None and record is not None and self.backend.capabilities.runs_manifests:
                launch = msgspec.structs.replace(launch, manifest=msgspec.json.decode(record.about.document))
            await self.backend.apply(op, launch)
        except Exception as error:
            why = str(error) or type(error).__name__
            _log.warning("operation failed: %s %s: %s", OpKind.name(op.kind).lower(), op.job, why)
            failed = OperationFailed(
                at=0.0, number=np.array([op.number]), generation=np.array([op.generation]), why=why
            )
            self._enqueue(Request(events=(failed,), notes=(Note(job=op.job, type="trouble", text=why),)))

    def _seconds_left(self, job_id: str) -> float | None:
        """Return the rest of the job's time limit in seconds; None without a limit."""
        job = self.engine.query.job(job_id)
        if job is None or job.time_limit == math.inf:
            return None
        running_s = max(self.clock.now() - job.since, 0.0) if job.observed else 0.0
        return max(job.time_limit - job.running_s - running_s, 0.0)

    def _stops(self, strays: Iterable[int]) -> Iterator[Op]:
        for number in strays:
            if number in self._strays:
                job, generation = self._strays[number]
                yield Op(job=job, number=number, kind=OpKind.STOP, generation=generation, grant=None)

    async def _decide(self, question: Decide) -> None:
        result = await run_policy_in_thread(question, self.engine.query.options.decide_limit_s)
        self._enqueue(Request(events=(result,)))

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at < math.inf:
            pause_s = min(max(0.0, at - self.clock.now()), _MAX_SLEEP_S)
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._on_timer, at)

    def _on_timer(self, at: float) -> None:
        if self.clock.now() < at:
            self._set_timer(at)
        else:
            self._enqueue(Request(events=(Tick(at=0.0),)))
