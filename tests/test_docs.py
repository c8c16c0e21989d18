"""The documentation names only modules, files and links that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from levada.cli.main import main

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "levada"
#: The changelog names modules of earlier versions, too.
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md")),
         *sorted((ROOT / "examples").rglob("*.md"))]  # fmt: skip
NAMES = sorted(path.name.removesuffix(".py") for path in PACKAGE.iterdir() if not path.name.startswith(("_", ".")))
DIRECTORIES = sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and not path.name.startswith(("_", ".")))
#: `levada.live.loop`, also as part of a longer name (`levada.sdk.Job`), but not `levada.dev/v1` or `levada.db`.
MODULE = re.compile(rf"\blevada((?:\.(?:{'|'.join(NAMES)}))(?:\.\w+)*)\b(?![/-])")
#: Names relative to the package, in code: `solve.price`, `core.assignment.Assignment`.
RELATIVE = re.compile(
    rf"`((?:{'|'.join(sorted(set(DIRECTORIES) - {'policies', 'sim', 'report'}))})(?:\.(?!json|log)\w+)+)`"
)
#: `live/loop.py`, `src/levada/live/loop.py`, `tests/soak/worker.py`, `live/store`.
FILE = re.compile(
    rf"(?<![\w/.$-])((?:src/levada|tests|scripts|bench|examples|docs|{'|'.join(DIRECTORIES)})/[\w/.-]*\w)(?![\w/*…<])"
)
#: A command line in a page: the words after `levada`, up to a comment, the end of a code span or of the line.
COMMAND = re.compile(r"\blevada ((?:[a-z]+ )*[a-z]+\b[^`#\n]*)")
LINK = re.compile(r"\[[^\]\n]+\]\((?P<path>[^)#:\s]*)(?:#(?P<anchor>[^)\s]*))?\)")


def has_name(path: str) -> bool:
    """Whether a dotted name below the package is a module, or a name that a module or class defines."""
    parts = path.split(".")
    folder = PACKAGE
    for depth, part in enumerate(parts):
        if (folder / part).is_dir():
            folder = folder / part
            continue
        source = folder / f"{part}.py"
        rest = parts[depth + 1 :]
        if not source.exists():
            source, rest = folder / "__init__.py", parts[depth:]
        text = source.read_text(encoding="utf-8")
        return not rest or bool(re.search(rf"\b{re.escape(rest[0])}\b", text))
    return True


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = {name.removeprefix(".") for name in MODULE.findall(text)} | set(RELATIVE.findall(text))
    assert sorted(name for name in named if not has_name(name)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_exist(page: Path) -> None:
    text = re.sub(r"\]\([^)]*\)", "]", page.read_text(encoding="utf-8"))
    named = {name for name in FILE.findall(text) if not re.search(r"/[A-Z]+/", name)}
    assert sorted(name for name in named if not (ROOT / name).exists() and not (PACKAGE / name).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages_and_headings(page: Path) -> None:
    broken = []
    for link in LINK.finditer(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)):
        target = (page.parent / link["path"]).resolve() if link["path"] else page
        if not target.exists() or (link["anchor"] and link["anchor"] not in anchors(target)):
            broken.append(link[0])
    assert broken == []


def help_of(words: tuple[str, ...], capsys: pytest.CaptureFixture[str], texts: dict[tuple[str, ...], str]) -> str:
    """The help text of the verb that these words start with; empty if there is none."""
    verb = words[:1]
    while True:
        if verb not in texts:
            code = main([*verb, "--help"])
            texts[verb] = capsys.readouterr().out if code == 0 else ""
        if "COMMAND [ARGS]" not in texts[verb] or len(verb) == len(words):
            return texts[verb]
        verb = words[: len(verb) + 1]


def test_commands_have_the_flags_that_pages_show(capsys: pytest.CaptureFixture[str]) -> None:
    texts: dict[tuple[str, ...], str] = {}
    wrong = []
    for page in PAGES:
        for line in COMMAND.findall(page.read_text(encoding="utf-8").replace("\\\n", " ")):
            own = line.split(" -- ")[0]
            words = tuple(word for word in own.split() if re.fullmatch(r"[a-z]+", word))
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", own):
                if not re.search(rf"{flag}(?![\w-])", help_of(words, capsys, texts)):
                    wrong.append(f"{page.name}: {line}: {flag}")
    assert wrong == []
    assert len(texts) > 10


def test_pages_that_sources_name_exist() -> None:
    named = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8"))
    }
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
