"""30 s of faults on each store: jobs run once, nothing is lost, no process remains. `make soak` runs longer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.postgres import Postgres, postgres
from tests.soak.soak import Soak

#: Duration of the faults; afterwards all jobs must end.
_SECONDS = 30.0
_SEED = int(os.environ.get("LEVADA_SEED", "1"))


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


def test_nothing_is_lost_or_duplicated_on_sqlite(tmp_path: Path) -> None:
    _assert_without_faults(Soak(tmp_path / "world", _SEED, _SECONDS))


def test_nothing_is_lost_or_duplicated_on_postgresql(tmp_path: Path, database: Postgres) -> None:
    _assert_without_faults(Soak(tmp_path / "world", _SEED, _SECONDS, database))


def _assert_without_faults(soak: Soak) -> None:
    faults = soak.run()
    assert faults == [], f"seed {soak.seed}: {soak.summary()}; see {soak.world.folder}\n" + "\n".join(soak.log[-100:])
    assert soak.injector.done.total() > 0
    assert any(plan.id for plan in soak.plans)
