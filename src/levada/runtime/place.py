"""Where this process stands: what the supervisor told it in its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from levada.runtime.world import World


class Place(NamedTuple):
    """A worker as it was started. Its rank holds for one generation only; its name for life."""

    job: str
    worker: str
    #: It was started for this one; 0 without a supervisor.
    generation: int
    rank: int
    world_size: int
    #: Of rank 0, as torch has them.
    address: str
    port: int
    checkpoints: Path | None
    state: Path | None
    server: str
    token: str

    @property
    def world(self) -> World:
        """The world as the environment alone tells it."""
        members = tuple(f"g{self.generation}-{rank}" for rank in range(self.world_size))
        return World(self.generation, members, self.address, self.port)


def read(environment: Mapping[str, str] = os.environ) -> Place:
    """The place of this process; alone in its world where nothing is told."""
    generation = _number(environment, 0, "LEVADA_GENERATION")
    # Under torchrun its agent is Levada's worker and knows better who is a member; its first process speaks for all.
    is_torchrun = "TORCHELASTIC_RUN_ID" in environment
    is_silent = is_torchrun and environment.get("LOCAL_RANK", "0") != "0"
    prefixes = ("", "LEVADA_") if is_torchrun else ("LEVADA_", "")
    rank = _number(environment, 0, *(f"{prefix}RANK" for prefix in prefixes))
    state = None if is_silent else environment.get("LEVADA_STATE_DIR")
    checkpoints = environment.get("LEVADA_CHECKPOINT_DIR")
    return Place(
        job=environment.get("LEVADA_JOB", ""),
        worker=Path(state).name if state else f"g{generation}-{rank}",
        generation=generation,
        rank=rank,
        world_size=_number(environment, 1, *(f"{prefix}WORLD_SIZE" for prefix in prefixes)),
        address=environment.get("MASTER_ADDR", "127.0.0.1"),
        port=_number(environment, 0, "MASTER_PORT"),
        checkpoints=Path(checkpoints) if checkpoints else None,
        state=Path(state) if state else None,
        server="" if is_silent else environment.get("LEVADA_SERVER", ""),
        token=environment.get("LEVADA_TOKEN", ""),
    )


def _number(environment: Mapping[str, str], otherwise: int, *names: str) -> int:
    for name in names:
        if text := environment.get(name):
            try:
                return int(text)
            except ValueError:
                raise ValueError(f"{name} is {text!r} and should be a whole number: unset it or mend it") from None
    return otherwise
