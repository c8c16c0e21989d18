"""Worker environment: the variables that the supervisor sets for a worker."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from levada.runtime.generation_file import World


class WorkerEnv(NamedTuple):
    """A worker as it was started; its rank is valid for one generation, its name for life."""

    job: str
    worker: str
    #: The generation for which it was started; 0 without a supervisor.
    generation: int
    rank: int
    world_size: int
    #: Address and port of rank 0 (MASTER_ADDR, MASTER_PORT).
    address: str
    port: int
    checkpoints: Path | None
    state: Path | None
    server: str
    token: str
    #: File with the token, which the cluster replaces before it expires; empty if `token` is constant.
    token_file: str = ""

    @property
    def world(self) -> World:
        """The generation as described by the environment alone."""
        members = tuple(f"g{self.generation}-{rank}" for rank in range(self.world_size))
        return World(self.generation, members, self.address, self.port)


def read(environment: Mapping[str, str] = os.environ) -> WorkerEnv:
    """Read the environment of this process; a single worker without any variables."""
    generation = _number(environment, 0, "LEVADA_GENERATION")
    # Under torchrun, its agent is Levada's worker and knows the members; its first process reports for all.
    is_torchrun = "TORCHELASTIC_RUN_ID" in environment
    is_silent = is_torchrun and environment.get("LOCAL_RANK", "0") != "0"
    prefixes = ("", "LEVADA_") if is_torchrun else ("LEVADA_", "")
    rank = _number(environment, 0, *(f"{prefix}RANK" for prefix in prefixes))
    state = None if is_silent else environment.get("LEVADA_STATE_DIR")
    checkpoints = environment.get("LEVADA_CHECKPOINT_DIR")
    return WorkerEnv(
        job=environment.get("LEVADA_JOB", ""),
        worker=Path(state).name if state else environment.get("LEVADA_WORKER") or f"g{generation}-{rank}",
        generation=generation,
        rank=rank,
        world_size=_number(environment, 1, *(f"{prefix}WORLD_SIZE" for prefix in prefixes)),
        address=environment.get("MASTER_ADDR", "127.0.0.1"),
        port=_number(environment, 0, "MASTER_PORT"),
        checkpoints=Path(checkpoints) if checkpoints else None,
        state=Path(state) if state else None,
        server="" if is_silent else environment.get("LEVADA_SERVER", ""),
        token=environment.get("LEVADA_TOKEN", ""),
        token_file=environment.get("LEVADA_TOKEN_FILE", ""),
    )


def _number(environment: Mapping[str, str], default: int, *names: str) -> int:
    for name in names:
        if text := environment.get(name):
            try:
                return int(text)
            except ValueError:
                raise ValueError(f"{name} is {text!r} but must be an integer: unset or correct it") from None
    return default
