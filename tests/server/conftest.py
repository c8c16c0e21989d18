"""One server per test process, reset before each test."""

from collections.abc import Iterator

import pytest

from levada.server.context import ServerTuning
from tests.server.http_server import Served, served


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Served]:
    with served(tuning=ServerTuning(metrics_s=0.0)) as running:
        yield running


@pytest.fixture
def up(shared_server: Served) -> Served:
    shared_server.run(shared_server.reset)
    return shared_server
