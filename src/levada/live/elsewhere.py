"""Jobs that run where this server cannot look: those of a server in another folder, or on another machine.

Processes outlive their server, and only a server in their folder sees them, with the agents that had joined it. Whoever
takes the store over from elsewhere must neither start such jobs a second time nor take them for lost.
"""

from __future__ import annotations

import os

import msgspec

from levada.engine import Engine
from levada.errors import Refused
from levada.live.store import Lease, Store

#: The setting that names the machine of the last server that acted.
_LAST = "machine"
#: So many jobs are named.
_MOST_NAMED = 3


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server is."""

    host: str
    folder: str
    #: Of its folder, which may be found again in another place, or under another name of the machine.
    id: str
    #: What a copy of the folder does not have; empty where nobody wrote it down.
    place: str = ""


class Elsewhere(Refused):
    """Jobs run that this server could only start again."""


async def take_over(store: Store, lease: Lease, engine: Engine, here: Machine, gone: str | None) -> None:
    """Notes that the server of *here* acts; raises Refused where jobs run that only another one sees.

    *gone*: the host of which an operator says that nothing runs any more of what its server had, on agents neither.
    """
    told = await store.setting(_LAST)
    last = None if told is None else msgspec.json.decode(told, type=Machine)
    copied = last is not None and _is_copy(last, here)
    if last is not None and (last.id != here.id or copied) and last.host != gone and (jobs := _holders(engine)):
        some = ", ".join(jobs[:_MOST_NAMED]) + (" and others" if len(jobs) > _MOST_NAMED else "")
        if copied:
            kind = Refused if last.host == here.host else Elsewhere
            raise kind(
                f"{here.folder} is a copy of {last.folder} on {last.host}, where jobs of this store run ({some}): "
                f"go on there with --state {last.folder}, or, when nothing of it runs any more, as after it was put "
                f"back from a backup, say so with --take-over {last.host}"
            )
        if last.host == here.host:
            raise Refused(
                f"jobs of this store run in the folder {last.folder} of this machine ({some}); go on there with "
                f"--state {last.folder}, or, when nothing of it runs any more, say so with --take-over {last.host}"
            )
        raise Elsewhere(
            f"{some} run on {last.host}, or on what had joined it, where only its own server sees them: start that "
            f"again, or, when nothing of it runs any more, say so with --take-over {last.host}: they start again here"
        )
    if last != here:
        await store.set_setting(_LAST, msgspec.json.encode(here).decode(), lease)


def _is_copy(last: Machine, here: Machine) -> bool:
    """Whether the folder of this server is not the one that acted last, though it carries its id."""
    if last.id != here.id:
        return False
    if last.place and here.place:
        return last.place != here.place
    # An older version did not write the place down: a folder that was moved is not where it was.
    return (last.host, last.folder) != (here.host, here.folder) and _is_there(last, here)


def _is_there(last: Machine, here: Machine) -> bool:
    return last.host == here.host and os.path.exists(last.folder) and not os.path.samefile(last.folder, here.folder)


def _holders(engine: Engine) -> list[str]:
    """Ids of the jobs that hold something, or were told to take it."""
    return engine.query.holders()
