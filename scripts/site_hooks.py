"""mkdocs hooks (mkdocs.yml): add pages from outside docs/ and convert repository links.

Links in the sources are relative to the repository, so that they work in a file browser. The hooks convert them to site
links. A link to a file that is not a page becomes plain text.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
#: Pages from outside docs/, by their name in the site.
EXTRA_PAGES = {
    "readme.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "examples.md": "examples/README.md",
}
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]+)\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")
#: A table row, and code in it. GitHub needs a backslash before a bar there; mkdocs would show it.
_ROW, _CODE = re.compile(r"^\|.*\\\|.*$", re.MULTILINE), re.compile(r"`[^`]+`")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    for name, path in EXTRA_PAGES.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Convert the links of a page."""
    source = EXTRA_PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    pages = {path: name for name, path in EXTRA_PAGES.items()}

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match["path"]))
        name = pages.get(target, target.removeprefix("docs/"))
        if files.get_file_from_path(name) is not None:
            relative = posixpath.relpath(name, posixpath.dirname(page.file.src_uri) or ".")
            return f"[{match['text']}]({relative}{match['anchor'] or ''})"
        # Keep a broken link, so that mkdocs reports it.
        return match["text"] if (ROOT / target).exists() else match[0]

    def bars(row: re.Match[str]) -> str:
        return _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0])

    return _ROW.sub(bars, _LINK.sub(link, markdown))
