"""A minute of faults on each kind of store: jobs run once, nothing is lost, nothing is left. `make soak` runs longer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.postgres import Postgres, postgres
from tests.soak.soak import Soak

#: Of faults; until all jobs have ended it takes as long as it takes.
_SECONDS = 30.0
_SEED = int(os.environ.get("LEVADA_SEED", "1"))


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


def test_nothing_is_lost_or_doubled_on_sqlite(tmp_path: Path) -> None:
    _soak(Soak(tmp_path / "world", _SEED, _SECONDS))


def test_nothing_is_lost_or_doubled_on_postgresql(tmp_path: Path, database: Postgres) -> None:
    _soak(Soak(tmp_path / "world", _SEED, _SECONDS, database))


def _soak(soak: Soak) -> None:
    found = soak.run()
    assert found == [], f"seed {soak.seed}: {soak.summary()}; see {soak.world.folder}\n" + "\n".join(soak.log[-100:])
    assert soak.injector.done.total() > 0
    assert any(plan.id for plan in soak.plans)
