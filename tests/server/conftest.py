"""One server per test, empty."""

from collections.abc import Iterator

import pytest

from tests.server.serving import Served, served


@pytest.fixture
def up() -> Iterator[Served]:
    with served() as running:
        yield running
