"""Where other people's data is: tests that need it are skipped where it is not, but never in continuous integration."""

import os
from pathlib import Path

import pytest


def peer_data() -> Path:
    """The folder that holds `gavel/` and `peers/`."""
    folder = os.environ.get("LEVADA_PEER_DATA", "")
    if folder:
        return Path(folder)
    reason = "LEVADA_PEER_DATA is not set: it names the folder that holds gavel/ and peers/"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
