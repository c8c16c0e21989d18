"""Generation file of the supervisor: members, rendezvous address and lease."""

from __future__ import annotations

import hmac
import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class World(NamedTuple):
    """One generation of a job; the rank of a member is its position."""

    generation: int
    members: tuple[str, ...]
    #: Address and port of rank 0.
    address: str
    port: int
    #: Secret of the members; empty from older supervisors.
    key: str = ""

    def rank(self, worker: str) -> int | None:
        """The rank of *worker*; None if it is not a member."""
        return self.members.index(worker) if worker in self.members else None

    @property
    def is_safe(self) -> bool:
        """Whether members may connect: without a key only over loopback or alone."""
        return bool(self.key) or len(self.members) == 1 or self.address.startswith("127.") or self.address == "::1"

    def digest(self, job: str) -> bytes:
        """The secret for this generation of this job, derived from the key."""
        text = repr((job, self.generation, self.members))
        return hmac.digest(self.key.encode(), text.encode(), "sha256")


class Lease(NamedTuple):
    """Limits up to which a worker may train without new instructions."""

    until_step: float = math.inf
    #: Unix time.
    until_time: float = math.inf
    #: Stop at its end as if asked to. Otherwise continue: an absent server must not stop training.
    stops: bool = False
    #: Steps of the whole job over all restarts. Only Gavel scripts, which do not count steps, end there.
    total_steps: float = math.inf

    def is_over(self, step: int, now: float) -> bool:
        """Whether it is time to stop."""
        return self.stops and (step >= self.until_step or now >= self.until_time)


ENDLESS = Lease()


def parse_world(document: Mapping[str, Any]) -> World:
    """Parse the members in `world.json`."""
    master = document["master"]
    members = tuple(str(name) for name in document["members"])
    return World(
        int(document["generation"]), members, str(master["address"]), int(master["port"]), str(document.get("key", ""))
    )


def parse_lease(document: Mapping[str, Any]) -> Lease:
    """Parse `{"total_steps": 500, "until_time": 1790000000.0, "then": "stop"}`; each field may be absent or null."""

    def limit(name: str) -> float:
        value = document.get(name)
        return math.inf if value is None else float(value)

    return Lease(limit("until_step"), limit("until_time"), document.get("then") == "stop", limit("total_steps"))
