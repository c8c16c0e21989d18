"""The state of a run in a file, so that it can go on after an interrupt, to the same result.

A run whose settings are not the same does not go on with it. The file holds data only: reading it runs nothing.
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
#: Files of older versions, which were Python pickles.
_OLD_MARK = b"levada simulation\n"


def save(path: str, settings: Settings, state: Any, own: str) -> None:
    """Writes *state*; the file is never half written. *own* is the module of the policy."""
    try:
        body = state_codec.dumps(state, own)
    except LevadaError as error:
        raise LevadaError(f"{path}: {error}") from error
    half = Path(f"{path}.half")
    try:
        half.write_bytes(_MARK + _digest(settings) + body)
        os.replace(half, path)
    except OSError as error:
        raise LevadaError(f"{path}: {error.strerror}") from None


def load(path: str, settings: Settings, own: str) -> Any:
    """What was saved there; None where nothing is. Raises BadInput for what is of another simulation, or no state."""
    half = Path(f"{path}.half")
    try:
        there = Path(path).exists()
        if there and not Path(path).is_file():
            raise BadInput.one(f"--checkpoint {path}: is no regular file; name another one")
        # Nobody wants to hear only at the end that it cannot be written.
        half.touch()
        half.unlink()
        if not there:
            return None
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadInput.one(f"--checkpoint {path}: {error.strerror}") from None
    if data.startswith(_OLD_MARK):
        raise BadInput.one(f"--checkpoint {path}: is of an older Levada, which wrote Python pickles; delete it")
    mark, digest = data[: len(_MARK)], data[len(_MARK) : len(_MARK) + 32]
    if mark != _MARK:
        raise BadInput.one(f"--checkpoint {path}: is not the state of a simulation; name another file")
    if digest != _digest(settings):
        raise BadInput.one(f"--checkpoint {path}: is of another simulation; delete it, or name another file")
    try:
        return state_codec.loads(data[len(_MARK) + 32 :], own)
    except Exception as error:
        raise BadInput.one(f"--checkpoint {path}: cannot be read: {error}; delete it to begin anew") from error


def drop(path: str) -> None:
    """The run is over: there is nothing to go on with."""
    Path(path).unlink(missing_ok=True)


def _digest(settings: Settings) -> bytes:
    """What makes two simulations the same: what they are told, but for the names of their own files."""
    plain = msgspec.structs.replace(settings, checkpoint=None, rounds=None)
    return hashlib.sha256(__version__.encode() + msgspec.json.encode(plain, order="deterministic")).digest()
