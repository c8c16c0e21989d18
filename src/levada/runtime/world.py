"""Values that the supervisor publishes: who is a member of which generation, and how long a lease lasts."""

from __future__ import annotations

import hmac
import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class World(NamedTuple):
    """One generation of a job. A member's rank is its place in the list."""

    generation: int
    members: tuple[str, ...]
    #: Where rank 0 is found.
    address: str
    port: int
    #: Shared by the members and nobody else; older supervisors give none.
    key: str = ""

    def rank(self, worker: str) -> int | None:
        """The rank of *worker*; None where it is no member."""
        return self.members.index(worker) if worker in self.members else None

    @property
    def is_safe(self) -> bool:
        """Whether its members may meet: without a key, only where nobody from outside can come."""
        return bool(self.key) or len(self.members) == 1 or self.address.startswith("127.") or self.address == "::1"

    def digest(self, job: str) -> bytes:
        """What members prove to each other that they know: the key, for this world of this job."""
        told = repr((job, self.generation, self.members))
        return hmac.digest(self.key.encode(), told.encode(), "sha256")


class Lease(NamedTuple):
    """How long a worker may train without being told again."""

    until_step: float = math.inf
    #: Unix time.
    until_time: float = math.inf
    #: At its end: stop as if asked to. Otherwise go on, since a server that is away stops nobody.
    stops: bool = False
    #: The steps of the whole job, over all restarts. Only scripts for Gavel, which do not count them, end there.
    total_steps: float = math.inf

    def is_over(self, step: int, now: float) -> bool:
        """Whether it is time to stop."""
        return self.stops and (step >= self.until_step or now >= self.until_time)


ENDLESS = Lease()


def parse_world(told: Mapping[str, Any]) -> World:
    """A world as `world.json` has it."""
    master = told["master"]
    members = tuple(str(name) for name in told["members"])
    return World(
        int(told["generation"]), members, str(master["address"]), int(master["port"]), str(told.get("key", ""))
    )


def parse_lease(told: Mapping[str, Any]) -> Lease:
    """A lease as `{"total_steps": 500, "until_time": 1790000000.0, "then": "stop"}`; each may be absent or null."""

    def limit(name: str) -> float:
        value = told.get(name)
        return math.inf if value is None else float(value)

    return Lease(limit("until_step"), limit("until_time"), told.get("then") == "stop", limit("total_steps"))
