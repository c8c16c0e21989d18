"""Takeover of a store from a server on another machine or in another directory.

Processes outlive their server, and only a server with the same state directory sees them and the agents that joined it.
A server that takes over from elsewhere must neither start such jobs twice nor count them as lost.
"""

from __future__ import annotations

import os

import msgspec

from levada.engine import Engine
from levada.errors import Refused
from levada.live.store import Store, StoreLease

#: Setting with the location of the last leader.
_LAST = "machine"
#: Jobs that an error names.
_MAX_NAMED = 3


class ServerLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Host and state directory of a server."""

    host: str
    folder: str
    #: Id of the directory; it stays the same if the directory is moved or the host renamed.
    id: str
    #: Identity that a copy of the directory does not share; empty if an older version wrote it.
    place: str = ""


class JobsRunElsewhere(Refused):
    """Jobs of this store run where this server does not see them."""


async def take_over(store: Store, lease: StoreLease, engine: Engine, here: ServerLocation, gone: str | None) -> None:
    """Record *here* as the location of the leader; Refused if jobs run that only another server sees.

    *gone*: host for which the operator confirms that no job of its server runs any more, including those on agents.
    """
    stored = await store.setting(_LAST)
    last = None if stored is None else msgspec.json.decode(stored, type=ServerLocation)
    copied = last is not None and _is_copy(last, here)
    if last is not None and (last.id != here.id or copied) and last.host != gone and (jobs := _holders(engine)):
        some = ", ".join(jobs[:_MAX_NAMED]) + (" and others" if len(jobs) > _MAX_NAMED else "")
        if copied:
            kind = Refused if last.host == here.host else JobsRunElsewhere
            raise kind(
                f"{here.folder} is a copy of {last.folder} on {last.host}, where jobs of this store run ({some}): "
                f"use --state-dir {last.folder} there, or, if none of them runs any more (as after a restore from a "
                f"backup), start with --take-over {last.host}"
            )
        if last.host == here.host:
            raise Refused(
                f"jobs of this store run in {last.folder} on this machine ({some}); use --state-dir {last.folder}, or, "
                f"if none of them runs any more, start with --take-over {last.host}"
            )
        raise JobsRunElsewhere(
            f"{some} run on {last.host} or on its agents, where only its own server sees them: start that server, or, "
            f"if none of them runs any more, start with --take-over {last.host}, which restarts them here"
        )
    if last != here:
        await store.set_setting(_LAST, msgspec.json.encode(here).decode(), lease)


def _is_copy(last: ServerLocation, here: ServerLocation) -> bool:
    """Whether the directory of this server is a copy of the last leader's: same id, other place."""
    if last.id != here.id:
        return False
    if last.place and here.place:
        return last.place != here.place
    # An older version did not store the place. A moved directory no longer exists at its old path, a copied one does.
    return (last.host, last.folder) != (here.host, here.folder) and _still_exists(last, here)


def _still_exists(last: ServerLocation, here: ServerLocation) -> bool:
    return last.host == here.host and os.path.exists(last.folder) and not os.path.samefile(last.folder, here.folder)


def _holders(engine: Engine) -> list[str]:
    """Return ids of jobs that hold devices or have an operation to get them."""
    return engine.query.holders()
