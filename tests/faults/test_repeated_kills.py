"""A repeatedly killed server still takes snapshots, so that the log to replay stays short."""

from __future__ import annotations

from pathlib import Path

import pytest

from levada.live import loop
from tests.live.fake_backend import FakeMachines
from tests.live.live_server import document, live_server

_TURNS = 40


async def test_replayed_entries_count_towards_the_next_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SNAPSHOT_TURNS", _TURNS)
    url, machines = f"sqlite:///{tmp_path}/levada.db", FakeMachines()

    turns = 0
    for life in range(8):
        async with live_server(url, machines) as up:
            assert up.live.loop.since_snapshot <= _TURNS + 5, f"life {life}"
            for _ in range(10):
                await up.service.submissions.submit([document(gpusPerWorker=0)], user="ann", key=None)
            turns = up.live.loop.lease.sequence
            await up.kill()
    assert turns > 2 * _TURNS
