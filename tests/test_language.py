"""Plain language: banned words do not occur in docs, examples, sources and tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BANNED = (
    "whoever", "whomever", "nobody", "somebody", "anybody", "anew", "of late", "for ever", "reckon", "aught", "hitherto",
    "shall", "so long", "so many", "so often",
)  # fmt: skip
#: A phrase may be wrapped, also in a comment.
PATTERN = re.compile(
    r"\b(?:" + "|".join(phrase.replace(" ", r"\s+(?:#:?\s+)?") for phrase in BANNED) + r")\b", re.IGNORECASE
)
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "tests/README.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*") if path.suffix in {".md", ".svg", ".css"}),
    *sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in {".md", ".py", ".yaml"}),
]


def occurrences(path: Path) -> list[str]:
    """The banned words of a file, as `line: word`."""
    text = path.read_text(encoding="utf-8")
    return [f"{text.count(chr(10), 0, match.start()) + 1}: {match[0]}" for match in PATTERN.finditer(text)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_have_no_banned_word(path: Path) -> None:
    assert occurrences(path) == []


@pytest.mark.parametrize("folder", ["src", "tests", "bench", "scripts"])
def test_code_has_no_banned_word(folder: str) -> None:
    paths = [path for path in sorted((ROOT / folder).rglob("*.py")) if path != Path(__file__)]
    assert paths
    assert {str(path.relative_to(ROOT)): words for path in paths if (words := occurrences(path))} == {}


def test_summaries_of_modules_have_at_most_80_characters() -> None:
    package = ROOT / "src" / "levada"
    summaries = {
        str(path.relative_to(package)): (ast.get_docstring(ast.parse(path.read_bytes())) or "").partition("\n")[0]
        for path in sorted(package.rglob("*.py"))
    }
    assert summaries
    assert {name: text for name, text in summaries.items() if len(text) > 80} == {}


@pytest.mark.parametrize(
    ("text", "is_banned"),
    [("Nobody waits", True), ("for so\n    # long that", True), ("also longer", False), ("of latency", False)],
)
def test_the_pattern_finds_whole_words_and_wrapped_phrases(text: str, is_banned: bool) -> None:
    assert bool(PATTERN.search(text)) == is_banned
