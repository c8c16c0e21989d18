"""`levada login` and `context`: select the server that other verbs talk to."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from levada.cli import config
from levada.cli.output import TextOrJson, columns, data, data_json, message
from levada.errors import BadInput, NotFound, did_you_mean

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the saved server.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the verb `login` and the group `context`."""
    app.command("login")(login)
    group = typer.Typer(help="List, select and remove saved servers.", rich_markup_mode=None)
    group.command("ls")(ls)
    group.command("use")(use)
    group.command("show")(show)
    group.command("rm")(rm)
    app.add_typer(group, name="context")


def login(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the server.", show_default=False)],
    token: Annotated[
        str | None, typer.Option("--token", help="Your token. Other users can see it here; prefer standard input.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the saved server. Default: its host.")] = None,
) -> None:
    """Save a server and its token, and use it from now on.

    The token is read from LEVADA_TOKEN or standard input.
    """
    from urllib.parse import urlsplit

    from levada.sdk.client import Client

    if not url.startswith(("http://", "https://")):
        raise BadInput.one(f"{url}: must start with http:// or https://")
    secret = token or os.environ.get("LEVADA_TOKEN") or _read_token()
    if not secret:
        raise BadInput.one("no token given; create one with `levada token create` on the server's machine")
    with Client(url, secret, patience_s=0.0) as client:
        me = client.me()
    context = name or (urlsplit(url).hostname or "server")
    settings = config.read(config.own_file())
    known = settings.get("contexts", {})
    config.write({**settings, "context": context, "contexts": {**known, context: {"server": url, "token": secret}}})
    data(f"Logged in to {url} as {me['user']} ({me['role']}); saved as context {context}")


def _read_token() -> str:
    if sys.stdin is not None and sys.stdin.isatty():
        from getpass import getpass

        return getpass("Token: ").strip()
    return sys.stdin.readline().strip() if sys.stdin is not None else ""


def ls(
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="Output format.")] = TextOrJson.TEXT,
) -> None:
    """List the saved servers."""
    saved, current = config.contexts()
    if output is TextOrJson.JSON:
        # Without tokens.
        data_json(
            [{"name": n, "server": s.server, "state": s.state, "current": n == current} for n, s in saved.items()]
        )
    elif saved:
        rows = [("*" if n == current else "", n, s.server or s.state or "-") for n, s in saved.items()]
        data(columns(("CURRENT", "NAME", "SERVER"), rows))
    else:
        message("No context is saved; `levada login URL` saves one.")


def use(name: Name) -> None:
    """Use a saved server from now on."""
    saved, _ = config.contexts()
    _require_known(name, saved)
    config.write({**config.read(config.own_file()), "context": name})
    data(name)


def show() -> None:
    """Show the server in use, and your user and role there."""
    from levada.cli.connection import connect

    with connect(patience_s=0.0) as client:
        me = client.me()
        data(f"{client.address.url} as {me['user']} ({me['role']})")


def rm(name: Name) -> None:
    """Remove a saved server and its token."""
    settings = config.read(config.own_file())
    known: dict[str, Any] = dict(settings.get("contexts", {}))
    _require_known(name, known)
    del known[name]
    left = {key: value for key, value in settings.items() if not (key == "context" and value == name)}
    config.write({**left, "contexts": known})
    data(name)


def _require_known(name: str, known: Any) -> None:
    if name not in known:
        raise NotFound(f"there is no context {name!r}" + did_you_mean(name, known, "see levada context ls"))
