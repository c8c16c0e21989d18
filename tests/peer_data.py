"""Other people's measurements, which tests read where they lie and which are no part of the project."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest


def peer_data(*parts: str) -> Path:
    """A file or folder under LEVADA_PEER_DATA; skips the test where that is unset, and fails it in CI."""
    folder = os.environ.get("LEVADA_PEER_DATA")
    if folder:
        return Path(folder, *parts)
    if os.environ.get("CI") == "true":
        pytest.fail("LEVADA_PEER_DATA is not set: CI needs the folder that holds gavel/ and peers/")
    pytest.skip("LEVADA_PEER_DATA is not set: the folder that holds gavel/ and peers/")


def gavel_table() -> dict[str, Any]:
    """Gavel's rates as they stand in its file: by type, then by job, alone (`null`) and with each partner."""
    return _read(peer_data("gavel", "simulation_throughputs.json"))


@cache
def _read(path: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(path.read_text())
    return table
