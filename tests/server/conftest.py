"""One server for all tests of a process, emptied for each."""

from collections.abc import Iterator

import pytest

from levada.server.context import Tuning
from tests.server.serving import Served, served


@pytest.fixture(scope="session")
def standing() -> Iterator[Served]:
    with served(tuning=Tuning(metrics_s=0.0)) as running:
        yield running


@pytest.fixture
def up(standing: Served) -> Served:
    standing.run(standing.reset)
    return standing
