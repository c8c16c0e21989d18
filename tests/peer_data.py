"""Other people's measurements, which tests read where they lie and which are no part of the project."""

import os
from pathlib import Path

import pytest


def peer_data(*parts: str) -> Path:
    """A file or folder under LEVADA_PEER_DATA; skips the test where that is unset, and fails it in CI."""
    folder = os.environ.get("LEVADA_PEER_DATA")
    if folder:
        return Path(folder, *parts)
    if os.environ.get("CI") == "true":
        pytest.fail("LEVADA_PEER_DATA is not set: CI needs the folder that holds gavel/ and peers/")
    pytest.skip("LEVADA_PEER_DATA is not set: the folder that holds gavel/ and peers/")
