"""An empty server and a client with an operator's token."""

from collections.abc import Iterator

import pytest

from levada.sdk import Client
from tests.server.conftest import shared_server, up
from tests.server.http_server import Served

__all__ = ["shared_server", "up"]


@pytest.fixture
def client(up: Served) -> Iterator[Client]:
    with Client(up.url, up.tokens["operator"], patience_s=3.0) as operator:
        yield operator
