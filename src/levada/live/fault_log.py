"""Log of engine faults for bug reports: event, error, traceback, count."""

from __future__ import annotations

import base64
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import msgspec

from levada import __version__
from levada.api.types import EngineFaultView
from levada.backends.protocol import Note
from levada.core import codec
from levada.core.commands import Faulted
from levada.live.views import moment

_log = logging.getLogger(__name__)

#: Setting of the store with the faults.
SETTING = "engine faults"
#: Limit of different faults; the least recent one is dropped first.
_MAX_FAULTS = 20
#: A start drops faults that have not recurred for this many seconds.
_KEPT_S = 30 * 86_400.0
#: Limits of an event in bytes and of a traceback in characters.
_MAX_EVENT, _MAX_TRACEBACK = 32_768, 16_384
#: Jobs that get a history line for one fault.
_MAX_JOBS = 20


class FaultReport(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of the engine; repetitions are counted."""

    #: The type of the event, or the part of the engine's own work; see `Faulted.kind`.
    kind: str
    error: str
    traceback: str
    times: int = 1
    first: float
    last: float
    #: The version of Levada that failed.
    version: str
    jobs: tuple[str, ...] = ()
    #: The logged event in base64; empty without an event or if it is too large.
    event: str = ""


class FaultLog:
    """The last faults, and counts by kind since the server started."""

    def __init__(self, stored: str | None = None, now: float = 0.0) -> None:
        """*stored*: the value of `SETTING` in the store."""
        self.reports: tuple[FaultReport, ...] = ()
        self.counts: Counter[str] = Counter()
        try:
            known = msgspec.json.decode(stored or "[]", type=tuple[FaultReport, ...])
            self.reports = tuple(fault for fault in known if fault.last > now - _KEPT_S)
        except msgspec.DecodeError as error:
            _log.warning("ignoring the stored engine faults: %s", error)

    def note(self, faulted: Iterable[Faulted]) -> None:
        """Count and log new faults."""
        for fault in faulted:
            self.counts[fault.kind] += 1
            _log.error("engine fault in %s, undone: %s\n%s", fault.kind, fault.error, fault.traceback.rstrip())

    def with_new(self, faulted: Sequence[Faulted], now: float, ids: Mapping[int, str]) -> tuple[FaultReport, ...]:
        """Return the faults including new ones; the caller assigns them to `reports` once stored."""
        faults = {(fault.kind, fault.error): fault for fault in self.reports}
        for fault in faulted:
            known = faults.pop((fault.kind, fault.error), None)
            faults[fault.kind, fault.error] = FaultReport(
                kind=fault.kind,
                error=fault.error,
                traceback=fault.traceback[-_MAX_TRACEBACK:],
                times=1 if known is None else known.times + 1,
                first=now if known is None else known.first,
                last=now,
                version=__version__,
                jobs=tuple(ids.get(number, str(number)) for number in fault.number[:_MAX_JOBS]),
                event=_encoded(fault),
            )
        return tuple(faults.values())[-_MAX_FAULTS:]

    def views(self) -> list[EngineFaultView]:
        """Return the faults as JSON for the API."""
        times = [{"first": moment(fault.first), "last": moment(fault.last)} for fault in self.reports]
        faults = zip(self.reports, times, strict=True)
        return [cast(EngineFaultView, {**msgspec.to_builtins(fault), **when}) for fault, when in faults]


def notes(faulted: Iterable[Faulted], ids: Mapping[int, str]) -> list[Note]:
    """Return history notes: one per affected job, or one without a job."""
    result = []
    for fault in faulted:
        text = f"Internal error: {fault.kind} was not applied ({fault.error}). Run `levada doctor`."
        jobs = [ids[number] for number in fault.number[:_MAX_JOBS] if number in ids]
        result += [Note(job=job, type="fault", text=text, data={"kind": fault.kind}) for job in jobs or [""]]
    return result


def _encoded(faulted: Faulted) -> str:
    if faulted.event is None:
        return ""
    try:
        data = codec.encode(faulted.event)
    except Exception as error:  # a faulting event may be malformed
        _log.warning("cannot encode the faulting event: %s", error)
        return ""
    return base64.b64encode(data).decode() if len(data) <= _MAX_EVENT else ""
