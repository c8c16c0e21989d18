"""A server's inside: store, lease, engine, backend and loop, brought up in order and taken down in order."""

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
from levada.backends.protocol import Backend, Capabilities, Note, Report, Seen
from levada.core import events as ev
from levada.core.cluster import Cluster, Foreign, Node
from levada.engine import Engine, Options
from levada.errors import BadInput, LevadaError, Refused, did_you_mean
from levada.live import faults
from levada.live.deadlines import Deadlines
from levada.live.elsewhere import Elsewhere, Machine, take_over
from levada.live.faults import FaultLog
from levada.live.learning import Learning, recall
from levada.live.loop import SNAPSHOT_TURNS, Loop
from levada.live.machines import is_reservation
from levada.live.notify import Notifier
from levada.live.records import Record, Records
from levada.live.recover import recover, recover_records
from levada.live.store import Lease, LeaseLost, Store, StoreTrouble
from levada.live.trimming import Keep, Trimming
from levada.live.warnings import STUCK_AFTER_S, Warnings
from levada.live.witness import Witness
from levada.plugins import find_policy
from levada.tables.jobtable import ANY_LOSS

_log = logging.getLogger(__name__)

#: The lease lasts so long without a word of its holder.
LEASE_S = 15.0
#: How often one that stands by looks whether the other is gone.
STAND_BY_S = 0.5
#: How often things that are over are looked for.
_TIDY_S = 60.0
#: A side job that broke is begun again after so long.
_AGAIN_S = 10.0
#: Keys of submissions are remembered for so long.
_KEYS_S = 7 * 86_400.0
#: Told of a job of which the log and this version say different things.
_OTHERWISE = "This version of Levada makes something else of what was decided before: what was commanded counts."


class Live:
    """One server that acts. `open`, then `run`, then `close`."""

    def __init__(
        self,
        store: Store,
        backend: Backend,
        *,
        clock: Clock | None = None,
        stuck_after_s: float = STUCK_AFTER_S,
        gpu_use: Callable[[], Mapping[str, float]] | None = None,
        machine: Machine | None = None,
        keep: Keep | None = None,
        witness: Witness | None = None,
        prepare: Callable[[Lease], Awaitable[None]] | None = None,
    ) -> None:
        """*stuck_after_s*: when a job that makes no step is worth a warning, 0 for never; *gpu_use*: see `Warnings`.

        *machine*: where this server's processes are known from; *keep*: for how long what users may ask for is kept;
        *witness*: what the folder of those processes remembers of the store; *prepare*: what must be in the store
        before the backend opens.
        """
        self.store, self.backend = store, backend
        self._machine, self._keep, self._witness = machine, keep or Keep(), witness
        self._prepare = prepare
        self._clock = clock
        self._stuck_after_s, self._gpu_use = stuck_after_s, gpu_use
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        #: Why the lease could not be renewed, if so: most often the store takes no turn, either.
        self.unrenewed = ""
        #: Held while ended jobs are removed: a name must not be given out between two steps of that.
        self._forgetting = asyncio.Lock()
        self.loop: Loop
        self.learning: Learning

    async def open(
        self,
        *,
        wait: bool = False,
        policy: str | None = None,
        options: Mapping[str, Any] | None = None,
        gone: str | None = None,
    ) -> None:
        """Wins the lease, recovers what was, and compares it with what runs; raises Refused where another acts.

        *wait*: stand by until the other one is gone. *policy* is that of a store that is new; *options* are the
        engine's own, from now on. *gone*: see `take_over`.
        """
        _check(options or {})
        while True:
            lease = await self._acquire(wait)
            try:
                return await self._open(lease, policy, options or {}, gone)
            except BaseException as broken:
                # The next one need not wait until it has run out.
                with contextlib.suppress(LevadaError):
                    await self.store.release(lease)
                if not (wait and isinstance(broken, Elsewhere)):
                    raise
                _log.info("stands by: %s", broken)
            # Only a server that sees those jobs can change anything about them.
            while (await self.store.holder())[0] == self.holder:
                await asyncio.sleep(STAND_BY_S)

    async def _open(self, lease: Lease, policy: str | None, options: Mapping[str, Any], gone: str | None) -> None:
        await self.store.migrate(lease)
        if self._witness is not None:
            await self._witness.check(self.store, lease)
        engine, last, replayed, differing = await recover(self.store, lease.sequence)
        if self._machine is not None:
            await take_over(self.store, lease, engine, self._machine, gone)
        if self._prepare is not None:
            await self._prepare(lease)
        await recall(self.store, engine)
        clock = self._clock or MachineClock(last)
        records = await recover_records(self.store, clock.now())
        seen = await self.backend.open(lease.epoch, _used_by_others(engine))
        last_line = await self.store.last_history()
        self.loop = Loop(engine, self.store, lease, self.backend, clock, records, last_line)
        if self._witness is not None:
            self.loop.stored = self._witness.note
        # What had to be put right is kept at once, so that nobody has to do it again.
        self.loop.since_snapshot = SNAPSHOT_TURNS if differing else replayed
        self.learning = Learning(self.loop)
        self.loop.keys, known_faults = await self.store.keys_and_setting(faults.SETTING)
        self.loop.faults = FaultLog(known_faults, clock.now())
        first: list[ev.Event] = []
        if lease.sequence == 0:
            if policy is not None:
                find_policy(policy, {})  # raises BadInput while nothing has happened
                first.append(ev.PolicyChanged(at=0.0, name=policy))
        else:
            first.append(ev.Restarted(at=0.0))
        if options:
            first.append(ev.OptionsChanged(at=0.0, options=options))
        first += _unknown(engine, records)
        first += _resize_modes(engine, records, self.backend.capabilities)
        first += _nodes(engine, seen.cluster)
        self.loop.expect_strays(seen.running)
        # Ends come before the observation: a job that is not observed and has not ended starts again.
        first += [*seen.report.events, _observed(seen.running)]
        waiting = engine.outstanding()
        notes = [Note(job=job, type="recovered", text=_OTHERWISE) for job in differing if job in records.by_id]
        self.loop.hear(Report(events=tuple(first), notes=(*notes, *seen.report.notes)))
        await self.loop.turn()
        issued = {(op.number, op.generation) for op in engine.outstanding()}
        for op in waiting:
            # Taken down before and perhaps not heard of: once more does no harm.
            if (op.number, op.generation) in issued:
                await self.loop.apply(op)

    async def _acquire(self, wait: bool) -> Lease:
        told, seen, since = False, ("", 0.0), time.monotonic()
        while True:
            holder, until = await self.store.holder()
            now = time.time()
            if (holder, until) != seen:
                seen, since = (holder, until), time.monotonic()
            # A server of this machine that was killed cannot come back, and one that does not renew its lease for as
            # long as that lasts is gone, whatever its clock said: the lease need not run out.
            is_gone = _is_gone(holder) or time.monotonic() - since > LEASE_S
            fence = 0 if self._witness is None else self._witness.fence
            lease = await self.store.acquire(self.holder, max(now, until) if is_gone else now, LEASE_S, above=fence)
            if lease is not None:
                return lease
            # No lease lasts for longer than this one may still: a clock was set back.
            if not wait and until <= now + LEASE_S:
                raise Refused(f"another server acts on this store ({holder}); stop it first, or use another --state")
            if not told:
                _log.info("stands by: another server acts on this store (%s)", holder)
            told = True
            await asyncio.sleep(STAND_BY_S)

    async def run(self) -> None:
        """Works until `stop`, or until another server acts."""
        chores = [asyncio.create_task(self._renew()), asyncio.create_task(self._tidy())]
        warnings = Warnings(self.loop, self._stuck_after_s, self._gpu_use)
        sides = [
            asyncio.create_task(_again_and_again(side))
            for side in (
                self.learning.run,
                warnings.run,
                Deadlines(self.loop).run,
                Notifier(self.loop).run,
                Trimming(self.loop, self._keep).run,
            )
        ]
        work = asyncio.create_task(self.loop.run())
        try:
            done, _ = await asyncio.wait([work, *chores], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in [work, *chores, *sides]:
                task.cancel()
            await asyncio.gather(work, *chores, *sides, return_exceptions=True)

    def stop(self) -> None:
        """Ends `run` when what was taken is done."""
        self.loop.stop()

    async def stop_jobs(self) -> None:
        """Returns when all workers have saved and left, after `run`; until then nobody else acts."""
        both = [asyncio.create_task(self.backend.stop_all()), asyncio.create_task(self._renew())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def close(self) -> None:
        """Keeps the state and lets go of everything; what runs goes on."""
        self.loop.broadcast.close()
        if not self.loop.trouble:
            with contextlib.suppress(LevadaError):  # whoever has the lease now keeps what is to be kept
                await self.learning.keep()
                await self.loop.save_snapshot()
                await self.store.release(self.loop.lease)
        await self.backend.close()
        await self.store.close()
        if self._witness is not None:
            self._witness.close()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3)
            try:
                await self.store.renew(self.loop.lease, time.time(), LEASE_S)
                self.unrenewed = ""
            except LeaseLost:
                raise
            except StoreTrouble as trouble:
                self.unrenewed = str(trouble)
                _log.warning("the lease could not be renewed: %s", trouble)

    async def _tidy(self) -> None:
        """Jobs whose time in lists is over go, with their folders."""
        while True:
            async with self._forgetting:
                await self._forget_expired()
            await asyncio.sleep(_TIDY_S)

    async def _forget_expired(self) -> None:
        loop, now = self.loop, self.loop.clock.now()
        gone = loop.records.expired(now)
        # First the folder: until all is gone, nobody else can have the name.
        for record in gone:
            await self._forget(record.id)
        try:
            await self.store.forget(
                loop.lease,
                now,
                requests_before=now - _KEYS_S,
                jobs=[(record.number, record.id) for record in gone],
            )
        except StoreTrouble as trouble:
            _log.warning("what is over is forgotten later: %s", trouble)
        else:
            for record in gone:
                loop.records.drop(record)

    async def free_name(self, record: Record) -> None:
        """Removes an ended job with its folder at once, so that another one can have its id; raises LevadaError."""
        async with self._forgetting:
            if self.loop.records.by_id.get(record.id) is not record:
                return  # somebody else has removed it meanwhile
            # First a write that changes nothing: with a store that is away, nothing is removed.
            await self.store.renew(self.loop.lease, time.time(), LEASE_S)
            await self.backend.forget(record.id)
            now, gone = self.loop.clock.now(), [(record.number, record.id)]
            await self.store.forget(self.loop.lease, now, requests_before=now - _KEYS_S, jobs=gone)
            self.loop.records.drop(record)

    async def _forget(self, job: str) -> None:
        try:
            await self.backend.forget(job)
        except (LevadaError, OSError) as trouble:
            _log.warning("the folder of %s stays: %s", job, trouble)


async def _again_and_again(side: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Side jobs that no training job depends on: one that breaks is begun again, and takes nothing else along."""
    while True:
        try:
            return await side()
        except Exception:
            _log.exception("a side job of the server broke; it is begun again")
        await asyncio.sleep(_AGAIN_S)


def _check(options: Mapping[str, Any]) -> None:
    """Raises BadInput for options that the engine does not have, or values that they cannot have."""
    for name, value in options.items():
        if name not in Options.__struct_fields__:
            raise BadInput.one(f"there is no option {name}" + did_you_mean(name, Options.__struct_fields__))
        try:
            msgspec.convert({name: value}, Options)
        except (msgspec.ValidationError, ValueError) as bad:
            raise BadInput.one(f"{name}={value}: {bad}") from None


def _is_gone(holder: str) -> bool:
    """Whether a holder was a process of this machine that has ended."""
    host, _, rest = holder.partition(":")
    pid = rest.partition(":")[0]
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state in "ZX"  # it has ended, and only its parent has not looked yet


def _observed(seen: Mapping[str, Seen]) -> ev.Observed:
    found = list(seen.values())
    return ev.Observed(
        at=0.0,
        number=np.array([each.number for each in found], np.int64),
        generation=np.array([each.generation for each in found], np.int64),
        running=np.array([each.running for each in found], np.int64),
    )


def _unknown(engine: Engine, records: Records) -> list[ev.Event]:
    """Jobs without a record, whose submission was refused after a fault of the engine and not taken back yet."""
    numbers = sorted(set(engine.query.ids) - set(records.by_number))
    return [ev.JobsCancelled(at=0.0, number=np.array(numbers, np.int64))] if numbers else []


def _resize_modes(engine: Engine, records: Records, capabilities: Capabilities) -> list[ev.Event]:
    """How this backend resizes jobs, where the engine believes otherwise: another backend or version took them."""
    jobs = engine.query.jobs
    wrong: dict[int, int] = {}
    for slot in jobs.order.tolist():
        record, believed = records.by_number.get(int(jobs.number[slot])), int(jobs.resizes_in_place[slot])
        if record is None or record.about.launch is None:
            continue
        framework = record.about.launch.framework
        if believed == ANY_LOSS and framework in capabilities.in_place_with_runtime:
            continue  # its workers said so
        expected = int(framework in capabilities.in_place)
        if believed != expected:
            wrong[record.number] = expected
    if not wrong:
        return []
    numbers, modes = np.array(list(wrong), np.int64), np.array(list(wrong.values()), np.int64)
    return [ev.ResizeModes(at=0.0, number=numbers, in_place=modes)]


def _nodes(engine: Engine, cluster: Cluster) -> list[ev.Event]:
    """What is different about the machines since the engine last heard of them."""
    told: list[ev.Event] = []
    known = engine.query.cluster.known()
    fresh = tuple(node for node in cluster.nodes if node.name not in known or known[node.name][1])
    changed = tuple(node for node in cluster.nodes if node not in fresh and _differs(node, known[node.name][0]))
    names = {node.name for node in cluster.nodes}
    lost = tuple(name for name, (_, is_lost) in known.items() if name not in names and not is_lost)
    if fresh:
        told.append(ev.NodesAdded(at=0.0, nodes=fresh))
    if changed:
        told.append(ev.NodesChanged(at=0.0, nodes=changed))
    if lost:
        told.append(ev.NodesLost(at=0.0, names=lost))
    return told


def _differs(node: Node, known: Node) -> bool:
    """Whether anything but what users say of it is different about a machine."""
    return msgspec.structs.replace(node, cordoned=known.cordoned) != known


def _used_by_others(engine: Engine) -> tuple[Foreign, ...]:
    """What a backend told of others' use before; what users reserve is not the backend's."""
    known = engine.query.foreign.values()
    return tuple(each for each in known if each.node is not None and not is_reservation(each.id))
