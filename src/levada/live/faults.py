"""Faults of the engine, kept for a bug report: what failed, on which event, where in the program."""

from __future__ import annotations

import base64
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from levada import __version__
from levada.backends.protocol import Note
from levada.core import codec
from levada.core.commands import Faulted
from levada.live.views import moment

_log = logging.getLogger(__name__)

#: The setting of the store that holds the kept faults.
SETTING = "engine faults"
#: Different faults that are kept; the one that was seen last the longest time ago goes first.
_MOST_KEPT = 20
#: Seconds after which a fault that does not come again is forgotten by the next start.
_KEPT_S = 30 * 86_400.0
#: Bytes of an event, and characters of a traceback, that are kept of each.
_LARGEST_EVENT, _LONGEST_TRACEBACK = 32_768, 16_384
#: Jobs that get a line in their history for one fault.
_MOST_NAMED = 20


class FaultReport(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of the engine; equal ones are counted."""

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
    #: The event as the log has it, in base64; empty where there is none, or it is too large.
    event: str = ""


class FaultLog:
    """The last faults, and how many of each kind there were since the server started."""

    def __init__(self, stored: str | None = None, now: float = 0.0) -> None:
        """*stored*: the value of `SETTING` in the store."""
        self.kept: tuple[FaultReport, ...] = ()
        self.counts: Counter[str] = Counter()
        try:
            known = msgspec.json.decode(stored or "[]", type=tuple[FaultReport, ...])
            self.kept = tuple(fault for fault in known if fault.last > now - _KEPT_S)
        except msgspec.DecodeError as broken:
            _log.warning("ignoring the stored engine faults: %s", broken)

    def note(self, faulted: Iterable[Faulted]) -> None:
        """Counts and logs faults that have just happened."""
        for each in faulted:
            self.counts[each.kind] += 1
            _log.error("engine fault in %s, undone: %s\n%s", each.kind, each.error, each.traceback.rstrip())

    def with_these(self, faulted: Sequence[Faulted], now: float, ids: Mapping[int, str]) -> tuple[FaultReport, ...]:
        """What is kept after these faults; it counts once it is stored."""
        kept = {(fault.kind, fault.error): fault for fault in self.kept}
        for each in faulted:
            known = kept.pop((each.kind, each.error), None)
            kept[each.kind, each.error] = FaultReport(
                kind=each.kind,
                error=each.error,
                traceback=each.traceback[-_LONGEST_TRACEBACK:],
                times=1 if known is None else known.times + 1,
                first=now if known is None else known.first,
                last=now,
                version=__version__,
                jobs=tuple(ids.get(number, str(number)) for number in each.number[:_MOST_NAMED]),
                event=_encoded(each),
            )
        return tuple(kept.values())[-_MOST_KEPT:]

    def views(self) -> list[dict[str, object]]:
        """What is kept, as users see it."""
        times = [{"first": moment(fault.first), "last": moment(fault.last)} for fault in self.kept]
        return [{**msgspec.to_builtins(fault), **when} for fault, when in zip(self.kept, times, strict=True)]


def notes(faulted: Iterable[Faulted], ids: Mapping[int, str]) -> list[Note]:
    """Lines of history: one for each job that a fault concerns, or one for the server."""
    found = []
    for each in faulted:
        text = f"Internal error: {each.kind} was not applied ({each.error}). Run `levada doctor`."
        jobs = [ids[number] for number in each.number[:_MOST_NAMED] if number in ids]
        found += [Note(job=job, type="fault", text=text, data={"kind": each.kind}) for job in jobs or [""]]
    return found


def _encoded(faulted: Faulted) -> str:
    if faulted.event is None:
        return ""
    try:
        data = codec.encode(faulted.event)
    except Exception as broken:  # an event that faults may be anything
        _log.warning("cannot keep the event that failed: %s", broken)
        return ""
    return base64.b64encode(data).decode() if len(data) <= _LARGEST_EVENT else ""
