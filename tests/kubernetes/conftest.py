"""The test bed: one for each worker of pytest-xdist, and one namespace for each test."""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.testbed.bed import Bed
from tests.kubernetes.testbed.build import CannotBuild, build, find_built
from tests.kubernetes.workloads import Namespace

_IN_CI = os.environ.get("CI") == "true"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests that need the test bed if it is not built; here, so that the report has one line for all of them."""
    if "built" in getattr(item, "fixturenames", ()) and not _IN_CI and (missing := _missing()):
        pytest.skip(missing)


@functools.cache
def _missing() -> str | None:
    try:
        is_built = find_built() is not None
    except CannotBuild as error:
        return f"no Kubernetes test bed: {error}"
    return (
        None if is_built else "no Kubernetes test bed: build it with `make testbed` (about 15 minutes the first time)"
    )


@pytest.fixture(scope="session")
def built() -> Path:
    """The directory of the programs; CI builds them."""
    return build()


@pytest.fixture(scope="session")
def bed(built: Path) -> Iterator[Bed]:
    """A cluster with 8 nodes of each of two GPU types."""
    with Bed(built) as bed:
        bed.nodes("a100=8x8,v100=8x8")
        yield bed


@pytest.fixture
def namespace(bed: Bed) -> Iterator[Namespace]:
    """An empty namespace. Its contents vanish after the test."""
    name = bed.namespace(f"test-{secrets.token_hex(4)}")
    yield Namespace(bed.api, name)
    bed.api.delete(f"/api/v1/namespaces/{name}")
