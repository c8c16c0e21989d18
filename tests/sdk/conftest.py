"""A server, empty, and a client of an operator there."""

from collections.abc import Iterator

import pytest

from levada.sdk import Client
from tests.server.conftest import standing, up
from tests.server.serving import Served

__all__ = ["standing", "up"]


@pytest.fixture
def client(up: Served) -> Iterator[Client]:
    with Client(up.url, up.tokens["operator"], patience_s=3.0) as made:
        yield made
