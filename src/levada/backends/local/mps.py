"""CUDA's Multi-Process Service: several workers on one GPU at the same time, each with its part of it."""

from __future__ import annotations

import shutil

from levada.backends.local.roster import Member

CONTROL = "nvidia-cuda-mps-control"
WHOLE = 1000


def environment(member: Member, gpu_memory: int, pipe: str) -> dict[str, str]:
    """What limits a worker to its part of its GPUs; nothing where it has all of them, or there is no daemon.

    *gpu_memory* is in MiB, and *pipe* the folder where the daemon listens.
    """
    if not pipe or not member.devices or member.milli >= WHOLE:
        return {}
    env = {
        "CUDA_MPS_PIPE_DIRECTORY": pipe,
        # At least one in a hundred: 0 would mean no limit.
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(max(1, member.milli * 100 // WHOLE)),
    }
    if gpu_memory:
        # Numbers of devices as the worker sees them.
        limits = ",".join(f"{at}={gpu_memory}M" for at in range(len(member.devices)))
        env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = limits
    return env


def found() -> bool:
    """Whether this machine has the daemon's program."""
    return shutil.which(CONTROL) is not None
