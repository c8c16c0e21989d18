"""Checkpoints: whole or not at all, and never by an older generation."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import pytest

from levada.runtime import checkpoint
from levada.runtime.checkpoint import Outdated, Progress
from levada.runtime.state import State


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "on the way"
    progress = Progress(step=120, epoch=3, position=20, saves=4, saved_step=120)
    checkpoint.save(folder, 2, progress, b"state\nwith lines\n")
    assert checkpoint.peek(folder) == progress
    assert checkpoint.load(folder) == b"state\nwith lines\n"
    assert (folder / "generation").read_text() == "2\n"


def test_a_newer_generation_keeps_older_ones_out(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 7, Progress(step=10), b"new")
    with pytest.raises(Outdated, match=r"generation 7 has saved in .*, so generation 6 does not"):
        checkpoint.save(tmp_path, 6, Progress(step=99), b"old")
    assert checkpoint.load(tmp_path) == b"new"
    checkpoint.save(tmp_path, 7, Progress(step=11), b"newer")
    assert checkpoint.load(tmp_path) == b"newer"


def test_a_save_that_fails_leaves_the_last_one_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, 1, Progress(step=10), b"good")
    before = sorted(path.name for path in tmp_path.iterdir())

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, 1, Progress(step=20), b"bad")
    assert checkpoint.peek(tmp_path) == Progress(step=10)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_no_checkpoint_and_a_strange_one(tmp_path: Path) -> None:
    assert checkpoint.peek(tmp_path) is None
    (tmp_path / checkpoint.NAME).write_bytes(b"\x00something else")
    with pytest.raises(ValueError, match="move it away to start anew"):
        checkpoint.peek(tmp_path)


class Model:
    """As torch has them."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def state_dict(self) -> dict[str, float]:
        return {"weight": self.weight}

    def load_state_dict(self, values: dict[str, float]) -> None:
        self.weight = values["weight"]


def made(start: float) -> tuple[State, dict[str, object]]:
    things: dict[str, object] = {
        "model": Model(start),
        "seen": {"best": start},
        "losses": [start] * 3,
        "plain": array("d", [start]),
        "net": np.full((2, 2), start),
    }
    state = State()
    state.add(things)
    return state, things


def test_objects_are_restored_in_place() -> None:
    old, _ = made(1.5)
    new, things = made(0.0)
    net = things["net"]
    new.load(old.dump())
    assert things["model"].weight == 1.5  # type: ignore[attr-defined]
    assert (things["seen"], things["losses"], things["plain"]) == ({"best": 1.5}, [1.5] * 3, array("d", [1.5]))
    assert things["net"] is net
    assert np.all(np.asarray(net) == 1.5)


def test_own_functions_save_and_load() -> None:
    kept: list[object] = []
    state = State()
    state.add_functions(lambda: {"mine": 4}, kept.append)
    state.load(state.dump())
    assert kept == [{"mine": 4}]


def test_mistakes_say_what_to_do() -> None:
    state = State()
    with pytest.raises(TypeError, match=r"rate is a float, which cannot be .* state\(save=…, load=…\)"):
        state.add({"rate": 0.1})
    state.add({"a": []})
    data = state.dump()
    state.add({"b": []})
    with pytest.raises(ValueError, match="the checkpoint has a and lacks b: give the names it has"):
        state.load(data)
