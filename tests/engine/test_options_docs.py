"""The table of engine settings in the docs names each one with its default."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec

from levada.engine import Options

DOCS = Path(__file__).parents[2] / "docs" / "live.md"


def test_the_documented_settings_match_the_engine() -> None:
    section = DOCS.read_text().partition("\n## Engine settings\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| (.+) \|$", section, re.MULTILINE)
    assert {name: json.loads(default) for name, default, _ in rows} == msgspec.to_builtins(Options())
    assert [name for name, _, what in rows if not what.strip()] == []
