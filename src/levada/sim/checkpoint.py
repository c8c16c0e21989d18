"""Checkpoint files: resume an interrupted run with the same result.

A run with other settings rejects the file. The file contains data only: loading it executes no code.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec

from levada import __version__
from levada.errors import BadInput, LevadaError
from levada.sim import state_codec
from levada.sim.settings import Settings

_MARK = b"levada simulation 2\n"
#: Files of older versions are Python pickles.
_OLD_MARK = b"levada simulation\n"


def save(path: str, settings: Settings, state: Any, own: str) -> None:
    """Write *state* atomically. *own* is the module of the policy."""
    try:
        body = state_codec.dumps(state, own)
    except LevadaError as error:
        raise LevadaError(f"{path}: {error}") from error
    partial = Path(f"{path}.half")
    try:
        partial.write_bytes(_MARK + _digest(settings) + body)
        os.replace(partial, path)
    except OSError as error:
        raise LevadaError(f"{path}: {error.strerror}") from None


def load(path: str, settings: Settings, own: str) -> Any:
    """Return the saved state; None if there is no file. Raises BadInput for a state of another simulation."""
    partial = Path(f"{path}.half")
    try:
        exists = Path(path).exists()
        if exists and not Path(path).is_file():
            raise BadInput.one(f"--checkpoint {path}: not a regular file; choose another path")
        # Fail now rather than after minutes of simulation if the file cannot be written.
        partial.touch()
        partial.unlink()
        if not exists:
            return None
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadInput.one(f"--checkpoint {path}: {error.strerror}") from None
    if data.startswith(_OLD_MARK):
        raise BadInput.one(f"--checkpoint {path}: written by an older version of Levada; delete it")
    mark, digest = data[: len(_MARK)], data[len(_MARK) : len(_MARK) + 32]
    if mark != _MARK:
        raise BadInput.one(f"--checkpoint {path}: not a simulation checkpoint; choose another path")
    if digest != _digest(settings):
        raise BadInput.one(f"--checkpoint {path}: belongs to another simulation; delete it or choose another path")
    try:
        return state_codec.loads(data[len(_MARK) + 32 :], own)
    except Exception as error:
        raise BadInput.one(f"--checkpoint {path}: cannot be read: {error}; delete it to start over") from error


def drop(path: str) -> None:
    """Delete the checkpoint of a completed run."""
    Path(path).unlink(missing_ok=True)


def _digest(settings: Settings) -> bytes:
    """Digest of version and settings, without the names of output files."""
    plain = msgspec.structs.replace(settings, checkpoint=None, rounds=None)
    return hashlib.sha256(__version__.encode() + msgspec.json.encode(plain, order="deterministic")).digest()
