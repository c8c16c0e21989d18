"""CUDA Multi-Process Service: several workers share a GPU, each with a fraction."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from levada.backends.local.members import Member

CONTROL = "nvidia-cuda-mps-control"
WHOLE = 1000
_START_S = 10.0


def environment(member: Member, gpu_memory: int, pipe: str) -> dict[str, str]:
    """Variables that limit a worker to its fraction of its GPUs; empty for whole GPUs or without a daemon.

    *gpu_memory* is in MiB; *pipe* is the pipe folder of the daemon.
    """
    if not pipe or not member.devices or member.milli >= WHOLE:
        return {}
    env = {
        "CUDA_MPS_PIPE_DIRECTORY": pipe,
        # At least 1 %: 0 means no limit.
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(max(1, member.milli * 100 // WHOLE)),
    }
    if gpu_memory:
        # Device indexes as the worker sees them.
        limits = ",".join(f"{at}={gpu_memory}M" for at in range(len(member.devices)))
        env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = limits
    return env


def start(home: Path) -> str:
    """Start the daemon below *home* unless it runs; returns its pipe folder, or "" if it cannot be started.

    The daemon outlives the server, like the workers that use it.
    """
    pipe, logs = home / "mps", home / "mps-logs"
    try:
        for folder in (pipe, logs):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
        # If one runs already, this fails, which is fine.
        subprocess.run([CONTROL, "-d"], env=env, check=False, capture_output=True, timeout=_START_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return str(pipe)
