"""Whatever is killed and whenever: no job is lost, none runs twice, and all end as they should."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.mayhem import Mayhem
from tests.faults.site import site

#: All of them take a quarter of an hour or so for each seed (LEVADA_ALL_FAULTS=1; LEVADA_SEEDS=1,2,3 names the seeds).
_ALL = os.environ.get("LEVADA_ALL_FAULTS", "")
_SEEDS = [int(seed) for seed in os.environ.get("LEVADA_SEEDS", "1,2" if _ALL else "1").split(",")]
_KILLS = 200 if _ALL else 10


@pytest.mark.parametrize("seed", _SEEDS)
def test_kills_at_any_moment_lose_nothing_and_double_nothing(seed: int, tmp_path: Path) -> None:
    with site(tmp_path / "home") as here:
        (tmp_path / "home").mkdir()
        mayhem = Mayhem(here, tmp_path / "notes", seed)
        mayhem.run(_KILLS)
        assert mayhem.faults() == [], "\n".join(mayhem.story[-200:])
        here.until(lambda: not here.left())
        before = {job["id"]: job for job in here.client.jobs()}
        here.kill()
        here.up()
        assert {job["id"]: job for job in here.client.jobs()} == before
        assert not here.left()
