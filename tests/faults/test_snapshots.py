"""A server that is killed again and again takes its snapshots all the same: no start has ever more to replay."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from levada.live import loop
from tests.live.house import document, house
from tests.live.rehearsal import Stage

_TURNS = 40


def test_turns_that_were_replayed_count_for_the_next_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SNAPSHOT_TURNS", _TURNS)
    url, stage = f"sqlite:///{tmp_path}/levada.db", Stage()

    async def story() -> None:
        turns = 0
        for life in range(8):
            async with house(url, stage) as up:
                assert up.live.loop.since_snapshot <= _TURNS + 5, f"life {life}"
                for _ in range(10):
                    await up.service.submit([document(gpusPerWorker=0)], user="ann", key=None)
                turns = up.live.loop.lease.sequence
                await up.kill()
        assert turns > 2 * _TURNS

    asyncio.run(story())
