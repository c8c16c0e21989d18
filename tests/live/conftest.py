"""Fixtures: stores in SQLite and in a real PostgreSQL."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.postgres import postgres

_names = itertools.count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with postgres() as server:
        yield server.url


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """An empty database."""
    import asyncpg

    name = f"test{next(_names)}"

    async def make() -> None:
        connection = await asyncpg.connect(postgres_server)
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()

    asyncio.run(make())  # own loop: `url` requests this fixture by name, which must not run in the loop of a test
    return postgres_server.removesuffix("/postgres") + f"/{name}"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/levada.db"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database of each kind."""
    return str(request.getfixturevalue(f"{request.param}_url"))
