"""The page about the architecture says what the linter checks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_page_lists_the_layers_in_the_order_that_is_checked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    checked = [re.findall(r"\w+", layer) for layer in layers]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    assert [re.findall(r"\w+", row) for row in rows] == checked


def test_every_file_that_the_page_names_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`((?:core|engine|perf|policies|live|backends)/[\w/]+\.py)`", text)
    assert named
    assert [name for name in named if not (ROOT / "src" / "levada" / name).exists()] == []
