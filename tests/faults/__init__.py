"""Faults of every kind, with real servers and real processes."""

from pathlib import Path


def worker_path() -> str:
    """The script that the jobs of these tests run."""
    return str(Path(__file__).parent / "worker.py")
