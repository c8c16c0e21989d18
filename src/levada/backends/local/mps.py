"""CUDA's Multi-Process Service: several workers on one GPU at the same time, each with its part of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from levada.backends.local.roster import Member

CONTROL = "nvidia-cuda-mps-control"
WHOLE = 1000
_START_S = 10.0


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


def start(home: Path) -> str:
    """Starts the daemon below *home*, unless it runs; where it listens, or nothing where it cannot be started.

    It outlives the server, as the workers do that speak with it.
    """
    pipe, logs = home / "mps", home / "mps-logs"
    try:
        for folder in (pipe, logs):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
        # Of a second one it says that one runs already, and that is as good.
        subprocess.run([CONTROL, "-d"], env=env, check=False, capture_output=True, timeout=_START_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return str(pipe)
