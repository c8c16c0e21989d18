"""Startup and shutdown of a server: lease, recovery, backend, loop, tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from levada.backends.clock import Clock, MachineClock
from levada.backends.protocol import Capabilities, ClusterBackend, Note, Report, Seen
from levada.core import events as ev
from levada.core.cluster import Cluster, Foreign
from levada.engine import Engine, Options
from levada.errors import BadInput, LevadaError, Refused, did_you_mean
from levada.live import fault_log
from levada.live.arrivals import ClusterArrivals
from levada.live.deadlines import Deadlines
from levada.live.estimator_store import Learning, load_learned
from levada.live.faces import Faces
from levada.live.fault_log import FaultLog
from levada.live.loop import SNAPSHOT_TURNS, Loop
from levada.live.notify import Notifier
from levada.live.records import JobRecord, JobRecords
from levada.live.recover import recover, recover_records
from levada.live.reservations import ReservationExpiry, is_reservation
from levada.live.retention import Keep, RetentionTask
from levada.live.store import LeaseLost, Store, StoreError, StoreLease
from levada.live.store_identity import StoreIdentity
from levada.live.takeover import JobsRunElsewhere, ServerLocation, take_over
from levada.live.warnings import WarningOptions, Warnings
from levada.plugins import find_policy
from levada.tables.job_table import ANY_LOSS

_log = logging.getLogger(__name__)

#: The lease expires this long after its last renewal.
LEASE_S = 15.0
#: Seconds between two attempts of a standby to get the lease.
STAND_BY_S = 0.5
#: Seconds between two removals of expired jobs.
_CLEANUP_S = 60.0
#: Seconds before a failed side task is restarted.
_RESTART_S = 10.0
#: Keys of submissions are stored for 7 days.
_KEYS_S = 7 * 86_400.0
#: Lease holders of this process.
_HOLDERS: set[str] = set()
#: History text of a job whose replay differs from the log.
_REPLAY_DIFFERS = "Replay with this version differs from the log; the logged commands were kept."


class Live:
    """One live server: `open`, then `run`, then `close`."""

    def __init__(
        self,
        store: Store,
        backend: ClusterBackend,
        *,
        clock: Clock | None = None,
        warn: WarningOptions = WarningOptions(),  # noqa: B008 frozen default
        machine: ServerLocation | None = None,
        keep: Keep | None = None,
        store_identity: StoreIdentity | None = None,
        prepare: Callable[[StoreLease], Awaitable[None]] | None = None,
    ) -> None:
        """Prepare a server; nothing is read or written before `open`.

        *machine*: location of this server's processes; *keep*: retention times; *store_identity*: the state directory's
        record of the store; *prepare*: writes what the backend needs in the store before it opens.
        """
        self.store, self.backend = store, backend
        self._machine, self._keep, self._store_identity = machine, keep or Keep(), store_identity
        self._prepare = prepare
        self._clock = clock
        self._warn = warn
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        _HOLDERS.add(self.holder)
        #: Monotonic time at which the lease was last extended.
        self._renewed = time.monotonic()
        #: Why the last renewal of the lease failed; empty if it did not.
        self.unrenewed = ""
        #: Held while ended jobs are removed, so that no id is reused before its removal is complete.
        self._removal = asyncio.Lock()
        self.loop: Loop
        self.learning: Learning
        self.faces: Faces
        self.arrivals: ClusterArrivals

    async def open(
        self,
        *,
        wait: bool = False,
        policy: str | None = None,
        options: Mapping[str, Any] | None = None,
        gone: str | None = None,
    ) -> None:
        """Acquire the lease, recover the state and reconcile it with what runs; Refused while another server leads.

        *wait*: stand by until the other server is gone. *policy*: policy of a new store; *options*: options of the
        engine from now on. *gone*: see `take_over`.
        """
        _check(options or {})
        while True:
            lease = await self._acquire(wait)
            try:
                return await self._open(lease, policy, options or {}, gone)
            except BaseException as error:
                # Release the lease, so that the next server need not wait until it expires.
                with contextlib.suppress(LevadaError):
                    await self.store.release(lease)
                if not (wait and isinstance(error, JobsRunElsewhere)):
                    raise
                _log.info("standing by: %s", error)
            # Only a server on the machine of those jobs can resolve this; wait until one leads.
            while (await self.store.holder())[0] == self.holder:
                await asyncio.sleep(STAND_BY_S)

    async def _open(self, lease: StoreLease, policy: str | None, options: Mapping[str, Any], gone: str | None) -> None:
        await self.store.migrate(lease)
        if self._store_identity is not None:
            await self._store_identity.check(self.store, lease)
        engine, last, replayed, differing = await recover(self.store, lease.sequence)
        if self._machine is not None:
            await take_over(self.store, lease, engine, self._machine, gone)
        if self._prepare is not None:
            await self._prepare(lease)
        await load_learned(self.store, engine)
        clock = self._clock or MachineClock(last)
        records = await recover_records(self.store, clock.now())
        seen = await self.backend.open(lease.epoch, _foreign_use(engine))
        last_line = await self.store.last_history()
        self.loop = Loop(engine, self.store, lease, self.backend, clock, records, last_line)
        if self._store_identity is not None:
            self.loop.on_stored = self._store_identity.note
        # Save a snapshot soon after a reconciliation, so that the next start does not repeat it.
        self.loop.since_snapshot = SNAPSHOT_TURNS if differing else replayed
        self.learning = Learning(self.loop)
        self.loop.keys, known_faults = await self.store.keys_and_setting(fault_log.SETTING)
        self.loop.faults = FaultLog(known_faults, clock.now())
        events: list[ev.Event] = []
        if lease.sequence == 0:
            if policy is not None:
                find_policy(policy, {})  # raises BadInput before any event is logged
                events.append(ev.PolicyChanged(at=0.0, name=policy))
        else:
            events.append(ev.Restarted(at=0.0))
        options = {**options, **_engine_options(engine, self.backend.capabilities)}
        if options:
            events.append(ev.OptionsChanged(at=0.0, options=options))
        events += _without_record(engine, records)
        events += _resize_modes(engine, records, self.backend.capabilities)
        events += _nodes(engine, seen.cluster)
        self.loop.executor.expect_strays(seen.running)
        # Ends come before the observation: a job that is neither ended nor observed restarts.
        events += [*seen.report.events, _observed(seen.running)]
        outstanding = engine.outstanding()
        notes = [Note(job=job, type="recovered", text=_REPLAY_DIFFERS) for job in differing if job in records.by_id]
        self.loop.observe(Report(events=tuple(events), notes=(*notes, *seen.report.notes)))
        await self.loop.turn()
        issued = {(op.number, op.generation) for op in engine.outstanding()}
        self.faces = Faces(self.loop)
        self.arrivals = ClusterArrivals(self.loop, self.faces)
        self.loop.on_report, self.loop.on_queues_changed = self.arrivals.observe, self.arrivals.retry_refused
        if self.backend.capabilities.runs_manifests:
            self.arrivals.open(seen.report)
            await self._repeat_ends()
        for op in outstanding:
            # The backend may not have got it before the restart; operations are idempotent.
            if (op.number, op.generation) in issued:
                await self.loop.executor.dispatch(op)

    async def _repeat_ends(self) -> None:
        """Tell the backend again how jobs ended: the last server may have stopped before it did."""
        for record in self.loop.records.by_id.values():
            if record.result is not None:
                await self.backend.ended(record.id, record.result["phase"])

    async def _acquire(self, wait: bool) -> StoreLease:
        logged, seen, since = False, ("", 0.0), time.monotonic()
        while True:
            holder, until = await self.store.holder()
            now, before = time.time(), time.monotonic()
            if (holder, until) != seen:
                seen, since = (holder, until), time.monotonic()
            # Do not wait for the lease to expire by the clock if its holder was a process of this machine that was
            # killed, or has not renewed the lease for its whole duration: that holder's clock may be wrong.
            is_gone = _is_gone(holder) or time.monotonic() - since > LEASE_S
            fence = 0 if self._store_identity is None else self._store_identity.fence
            lease = await self.store.acquire(self.holder, max(now, until) if is_gone else now, LEASE_S, above=fence)
            if lease is not None:
                self._renewed = before
                return lease
            # A lease that lasts longer than LEASE_S comes from a clock that was set back: wait for it.
            if not wait and until <= now + LEASE_S:
                raise Refused(f"another server uses this store ({holder}); stop it first, or use another --state-dir")
            if not logged:
                _log.info("standing by: another server uses this store (%s)", holder)
            logged = True
            await asyncio.sleep(STAND_BY_S)

    async def run(self) -> None:
        """Run until `stop`, or until another server takes the lease."""
        critical = [asyncio.create_task(self._renew()), asyncio.create_task(self._clean_up())]
        warnings = Warnings(self.loop, self._warn)
        of_cluster = (self.arrivals.run, self.faces.run) if self.backend.capabilities.runs_manifests else ()
        sides = [
            asyncio.create_task(_restart_on_error(side))
            for side in (
                self.learning.run,
                warnings.run,
                Deadlines(self.loop).run,
                Notifier(self.loop).run,
                ReservationExpiry(self.loop).run,
                RetentionTask(self.loop, self._keep).run,
                *of_cluster,
            )
        ]
        work = asyncio.create_task(self.loop.run())
        try:
            done, _ = await asyncio.wait([work, *critical], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in [work, *critical, *sides]:
                task.cancel()
            await asyncio.gather(work, *critical, *sides, return_exceptions=True)

    def lease_age_s(self) -> float:
        """Return the time since the lease was last extended."""
        return time.monotonic() - self._renewed

    def stop(self) -> None:
        """End `run` when the accepted requests are done."""
        self.loop.stop()

    async def stop_jobs(self) -> None:
        """Stop all workers after `run`; renews the lease until they have saved and exited."""
        tasks = [asyncio.create_task(self.backend.stop_all()), asyncio.create_task(self._renew())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Save the state and release the lease; jobs keep running."""
        self.loop.broadcast.close()
        if not self.loop.trouble:
            with contextlib.suppress(LevadaError):  # with the lease lost, the new leader saves its own state
                await self.learning.save()
                await self.loop.save_snapshot()
                await self.store.release(self.loop.lease)
        await self.backend.close()
        await self.store.close()
        if self._store_identity is not None:
            self._store_identity.close()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3)
            before = time.monotonic()
            try:
                await self.store.renew(self.loop.lease, time.time(), LEASE_S)
                self._renewed, self.unrenewed = before, ""
            except LeaseLost:
                raise
            except StoreError as error:
                self.unrenewed = str(error)
                _log.warning("cannot renew lease: %s", error)

    async def _clean_up(self) -> None:
        """Remove expired jobs and their directories every 60 s."""
        while True:
            async with self._removal:
                await self._remove_expired()
            await asyncio.sleep(_CLEANUP_S)

    async def _remove_expired(self) -> None:
        loop, now = self.loop, self.loop.clock.now()
        expired = loop.records.expired(now)
        # The directory goes first: the id stays in use until everything is removed.
        for record in expired:
            await self._remove_directory(record.id)
        try:
            await self.store.forget(
                loop.lease,
                now,
                requests_before=now - _KEYS_S,
                jobs=[(record.number, record.id) for record in expired],
            )
        except StoreError as error:
            _log.warning("cannot remove expired jobs, will retry: %s", error)
        else:
            for record in expired:
                loop.records.drop(record)

    async def free_name(self, record: JobRecord) -> None:
        """Remove an ended job and its directory now, so that a new job can take its id; raises LevadaError."""
        async with self._removal:
            if self.loop.records.by_id.get(record.id) is not record:
                return  # another request has removed it meanwhile
            # Check the store with a write that changes nothing: if it is away, the directory must stay.
            await self.store.renew(self.loop.lease, time.time(), LEASE_S)
            await self.backend.forget(record.id)
            now, jobs = self.loop.clock.now(), [(record.number, record.id)]
            await self.store.forget(self.loop.lease, now, requests_before=now - _KEYS_S, jobs=jobs)
            self.loop.records.drop(record)

    async def _remove_directory(self, job: str) -> None:
        try:
            await self.backend.forget(job)
        except (LevadaError, OSError) as error:
            _log.warning("cannot remove directory of %s: %s", job, error)


async def _restart_on_error(side: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a side task; an exception is logged and the task restarted, so that it cannot stop the server."""
    while True:
        try:
            return await side()
        except Exception:
            _log.exception("side task failed, restarting in %g s: %s", _RESTART_S, side.__qualname__)
        await asyncio.sleep(_RESTART_S)


def _check(options: Mapping[str, Any]) -> None:
    """Raise BadInput for unknown options of the engine or invalid values."""
    for name, value in options.items():
        if name not in Options.__struct_fields__:
            raise BadInput.one(f"there is no option {name}" + did_you_mean(name, Options.__struct_fields__))
        try:
            msgspec.convert({name: value}, Options)
        except (msgspec.ValidationError, ValueError) as bad:
            raise BadInput.one(f"{name}={value}: {bad}") from None


def _is_gone(holder: str) -> bool:
    """Whether a lease holder was a process of this machine that has ended."""
    host, _, rest = holder.partition(":")
    pid = rest.partition(":")[0]
    if host != socket.gethostname() or not pid.isdigit():
        return False
    if int(pid) == os.getpid():
        return holder not in _HOLDERS  # e.g. a restarted container, whose pid is 1 again
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state in "ZX"  # ended, but not reaped by its parent yet


def _observed(running: Mapping[str, Seen]) -> ev.Observed:
    jobs = list(running.values())
    return ev.Observed(
        at=0.0,
        number=np.array([job.number for job in jobs], np.int64),
        generation=np.array([job.generation for job in jobs], np.int64),
        running=np.array([job.running for job in jobs], np.int64),
    )


def _without_record(engine: Engine, records: JobRecords) -> list[ev.Event]:
    """Cancel jobs without a record: their submission was refused after an engine fault, their cancel not logged."""
    numbers = sorted(set(engine.query.ids) - set(records.by_number))
    return [ev.JobsCancelled(at=0.0, number=np.array(numbers, np.int64))] if numbers else []


def _resize_modes(engine: Engine, records: JobRecords, capabilities: Capabilities) -> list[ev.Event]:
    """Correct which jobs resize in place, if another backend or version has accepted them."""
    jobs = engine.query.jobs
    wrong: dict[int, int] = {}
    for slot in jobs.order.tolist():
        record, believed = records.by_number.get(int(jobs.number[slot])), int(jobs.resizes_in_place[slot])
        if record is None or record.about.launch is None:
            continue
        framework = record.about.launch.framework
        if believed == ANY_LOSS and framework in capabilities.in_place_with_runtime:
            continue  # its workers reported that they can
        expected = int(framework in capabilities.in_place)
        if believed != expected:
            wrong[record.number] = expected
    if not wrong:
        return []
    numbers, modes = np.array(list(wrong), np.int64), np.array(list(wrong.values()), np.int64)
    return [ev.ResizeModes(at=0.0, number=numbers, in_place=modes)]


def _engine_options(engine: Engine, capabilities: Capabilities) -> dict[str, bool]:
    """Return the options that follow from the backend, if another backend has set them."""
    wanted = capabilities.drops_highest_first
    return {} if engine.query.options.highest_first == wanted else {"highest_first": wanted}


def _nodes(engine: Engine, cluster: Cluster) -> list[ev.Event]:
    """Return the differences between the nodes of the backend and those of the engine."""
    events: list[ev.Event] = []
    known = engine.query.cluster.known()
    added = tuple(node for node in cluster.nodes if node.name not in known or known[node.name][1])
    changed = tuple(node for node in cluster.nodes if node not in added and node != known[node.name][0])
    names = {node.name for node in cluster.nodes}
    lost = tuple(name for name, (_, is_lost) in known.items() if name not in names and not is_lost)
    if added:
        events.append(ev.NodesAdded(at=0.0, nodes=added))
    if changed:
        events.append(ev.NodesChanged(at=0.0, nodes=changed))
    if lost:
        events.append(ev.NodesLost(at=0.0, names=lost))
    return events


def _foreign_use(engine: Engine) -> tuple[Foreign, ...]:
    """Return the foreign use that the backend has reported; reservations come from users."""
    known = engine.query.foreign.values()
    return tuple(foreign for foreign in known if foreign.node is not None and not is_reservation(foreign.id))
