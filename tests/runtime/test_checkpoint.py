"""Checkpoints: atomic, and fenced against older generations."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import pytest

from levada.runtime import checkpoint
from levada.runtime.checkpoint import Outdated, SavedProgress
from levada.runtime.state import TrainingState


def test_a_saved_checkpoint_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "missing" / "parents"
    progress = SavedProgress(step=120, epoch=3, position=20, saves=4, saved_step=120)
    checkpoint.save(folder, 2, progress, b"state\nwith lines\n")
    assert checkpoint.peek(folder) == progress
    assert checkpoint.load(folder) == b"state\nwith lines\n"
    assert (folder / "generation").read_text() == "2\n"


def test_an_older_generation_cannot_overwrite_a_newer_checkpoint(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 7, SavedProgress(step=10), b"new")
    with pytest.raises(Outdated, match=r"generation 7 has saved in .*, so generation 6 does not"):
        checkpoint.save(tmp_path, 6, SavedProgress(step=99), b"old")
    assert checkpoint.load(tmp_path) == b"new"
    checkpoint.save(tmp_path, 7, SavedProgress(step=11), b"newer")
    assert checkpoint.load(tmp_path) == b"newer"


def test_a_failed_save_keeps_the_last_checkpoint_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path, 1, SavedProgress(step=10), b"good")
    before = sorted(path.name for path in tmp_path.iterdir())

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, 1, SavedProgress(step=20), b"bad")
    assert checkpoint.peek(tmp_path) == SavedProgress(step=10)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_missing_checkpoint_is_none_and_a_foreign_file_an_error(tmp_path: Path) -> None:
    assert checkpoint.peek(tmp_path) is None
    (tmp_path / checkpoint.NAME).write_bytes(b"\x00something else")
    with pytest.raises(ValueError, match="move it away to start from scratch"):
        checkpoint.peek(tmp_path)


class Model:
    """An object with the state methods of a torch module."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def state_dict(self) -> dict[str, float]:
        return {"weight": self.weight}

    def load_state_dict(self, values: dict[str, float]) -> None:
        self.weight = values["weight"]


def training_state(start: float) -> tuple[TrainingState, dict[str, object]]:
    objects: dict[str, object] = {
        "model": Model(start),
        "seen": {"best": start},
        "losses": [start] * 3,
        "plain": array("d", [start]),
        "net": np.full((2, 2), start),
    }
    state = TrainingState()
    state.add(objects)
    return state, objects


def test_objects_are_restored_in_place() -> None:
    old, _ = training_state(1.5)
    new, objects = training_state(0.0)
    net = objects["net"]
    new.load(old.dump())
    assert objects["model"].weight == 1.5  # type: ignore[attr-defined]
    assert (objects["seen"], objects["losses"], objects["plain"]) == ({"best": 1.5}, [1.5] * 3, array("d", [1.5]))
    assert objects["net"] is net
    assert np.all(np.asarray(net) == 1.5)


def test_user_functions_save_and_load_state() -> None:
    loaded: list[object] = []
    state = TrainingState()
    state.add_functions(lambda: {"mine": 4}, loaded.append)
    state.load(state.dump())
    assert loaded == [{"mine": 4}]


def test_invalid_state_objects_and_checkpoints_say_what_to_do() -> None:
    state = TrainingState()
    with pytest.raises(TypeError, match=r"rate is a float, which cannot be .* state\(save=…, load=…\)"):
        state.add({"rate": 0.1})
    state.add({"a": []})
    data = state.dump()
    state.add({"b": []})
    with pytest.raises(ValueError, match="the checkpoint has a and lacks b: give the names it has"):
        state.load(data)
