"""Disks that are full or cannot be written to, as real as the machine allows."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_CHUNK = b"\0" * 4096


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """*folder* is a disk of its own, of that size; the test is skipped where nothing may be mounted, but not in CI."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "levada-test", str(folder)], capture_output=True
    )
    if made.returncode != 0:
        why = f"no disk can be mounted here ({made.stderr.decode().strip()}); run it as root"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody can write to the disk at *folder*."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)


def fill(path: Path) -> None:
    """Takes all room that is left on the disk of *path*."""
    with open(path, "ab", buffering=0) as file:
        try:
            while file.write(_CHUNK):
                pass
        except OSError:
            pass
