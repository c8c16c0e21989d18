"""One server per test, empty, and a client of an operator there."""

from collections.abc import Iterator

import pytest

from levada.sdk import Client
from tests.server.serving import Served, served


@pytest.fixture
def up() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def client(up: Served) -> Iterator[Client]:
    with Client(up.url, up.tokens["operator"], patience_s=3.0) as made:
        yield made
