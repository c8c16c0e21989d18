"""Full and read-only disks: mounted tmpfs file systems."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_CHUNK = b"\0" * 4096
#: Prefix of commands that need root.
_AS_ROOT = [] if os.geteuid() == 0 else ["sudo", "-n"]


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a disk of that size at *folder*; if mounting is not permitted, skip the test, or fail it in CI."""
    folder.mkdir()
    options = f"size={size},mode=700,uid={os.getuid()},gid={os.getgid()}"
    try:
        error = _as_root("mount", "-t", "tmpfs", "-o", options, "levada-test", str(folder))
    except OSError as broken:
        error = str(broken)
    if error:
        why = f"no disk can be mounted here ({error}); run it as root"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    try:
        yield
    finally:
        assert _as_root("umount", "-l", str(folder)) == ""


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make the disk at *folder* read-only."""
    assert _as_root("mount", "-o", "remount,ro", str(folder)) == ""
    try:
        yield
    finally:
        assert _as_root("mount", "-o", "remount,rw", str(folder)) == ""


def _as_root(*words: str) -> str:
    """Run a command as root; return its error, or an empty string."""
    done = subprocess.run([*_AS_ROOT, *words], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def fill(path: Path) -> None:
    """Fill the disk of *path*."""
    with open(path, "ab", buffering=0) as file:
        try:
            while file.write(_CHUNK):
                pass
        except OSError:
            pass
