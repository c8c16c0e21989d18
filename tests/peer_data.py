"""Measurements of other projects, read from LEVADA_PEER_DATA; not part of this project."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest


def peer_data(*parts: str) -> Path:
    """A path below LEVADA_PEER_DATA; if that is unset, skip the test, or fail it in CI."""
    folder = os.environ.get("LEVADA_PEER_DATA")
    if folder:
        return Path(folder, *parts)
    if os.environ.get("CI") == "true":
        pytest.fail("LEVADA_PEER_DATA is not set: CI needs the folder that holds gavel/ and peers/")
    pytest.skip("LEVADA_PEER_DATA is not set: the folder that holds gavel/ and peers/")


def gavel_table() -> dict[str, Any]:
    """Gavel's rates as in its file: by type, then by job, alone (`null`) and with each partner."""
    return _read(peer_data("gavel", "simulation_throughputs.json"))


@cache
def _read(path: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(path.read_text())
    return table
