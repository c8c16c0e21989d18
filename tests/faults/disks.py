"""Disks that are full or cannot be written to, as real as the machine allows."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_CHUNK = b"\0" * 4096
#: Who is not root may be allowed to act as root.
_AS_ROOT = [] if os.geteuid() == 0 else ["sudo", "-n"]


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """*folder* is a disk of its own, of that size; the test is skipped where nothing may be mounted, but not in CI."""
    folder.mkdir()
    options = f"size={size},mode=700,uid={os.getuid()},gid={os.getgid()}"
    try:
        made = _as_root("mount", "-t", "tmpfs", "-o", options, "levada-test", str(folder))
    except OSError as broken:
        made = str(broken)
    if made:
        why = f"no disk can be mounted here ({made}); run it as root"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    try:
        yield
    finally:
        assert _as_root("umount", "-l", str(folder)) == ""


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody can write to the disk at *folder*."""
    assert _as_root("mount", "-o", "remount,ro", str(folder)) == ""
    try:
        yield
    finally:
        assert _as_root("mount", "-o", "remount,rw", str(folder)) == ""


def _as_root(*words: str) -> str:
    """What is wrong; empty where it is done."""
    done = subprocess.run([*_AS_ROOT, *words], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def fill(path: Path) -> None:
    """Takes all room that is left on the disk of *path*."""
    with open(path, "ab", buffering=0) as file:
        try:
            while file.write(_CHUNK):
                pass
        except OSError:
            pass
