"""The documentation site: built without warnings, self-contained, and without unrendered Markdown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
#: Resources that a browser loads automatically from another host.
FETCHED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//[^\s\">]+)")
IMPORTED = re.compile(r"(?:@import|url\()\s*[\"']?((?:https?:)?//[^\s\"')]+)")
CODE = re.compile(r"<(pre|code)\b.*?</\1>", re.DOTALL)
ARTICLE, TAG = re.compile(r"<article.*?</article>", re.DOTALL), re.compile(r"<[^>]+>")
#: Markdown lists, tables, links and code that were not rendered.
RAW = re.compile(r"^\s*(?:[-*] \S.*|\|.*)|\|---|\]\(|`", re.MULTILINE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    if find_spec("mkdocs") is None and os.environ.get("CI") != "true":
        pytest.skip("mkdocs is not installed: pip install 'levada[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_every_page_is_in_the_navigation_and_built(site: Path) -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    named = [page for section in nav for pages in section.values() for entry in pages for page in entry.values()]
    built = {str(page.relative_to(site).with_suffix(".md")) for page in site.rglob("*.html")} - {"404.md"}
    assert built == set(named)
    assert built >= {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = [(FETCHED, page) for page in site.rglob("*.html")] + [(IMPORTED, sheet) for sheet in site.rglob("*.css")]
    assert [
        (page.name, pattern.findall(page.read_text())) for pattern, page in pages if pattern.search(page.read_text())
    ] == []


def test_no_markdown_is_left_as_text(site: Path) -> None:
    unrendered = {}
    for page in site.rglob("*.html"):
        for article in ARTICLE.finditer(page.read_text()):
            unrendered[page.name] = RAW.findall(TAG.sub("", CODE.sub("", article[0])))
    assert len(unrendered) > 20
    assert {name: matches for name, matches in unrendered.items() if matches} == {}
