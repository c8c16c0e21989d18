"""`levada version`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from levada import __version__
from levada.cli.output import TextOrJson, data, data_json


def register(app: typer.Typer) -> None:
    """Add the verb `version`."""
    app.command("version")(version)


def version(
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="Output format.")] = TextOrJson.TEXT,
) -> None:
    """Print the version of Levada and of Python."""
    python = ".".join(map(str, sys.version_info[:3]))
    if output is TextOrJson.JSON:
        data_json({"version": __version__, "python": python})
    else:
        data(f"levada {__version__} (Python {python})")
