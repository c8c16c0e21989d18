"""`levada login` and `context`: which server is meant."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from levada.cli import config
from levada.cli.output import TextOrJson, chatter, columns, data, data_json
from levada.errors import BadInput, NotFound, did_you_mean

Name = Annotated[str, typer.Argument(metavar="NAME", help="A context's name.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Adds the verb `login` and the group `context`."""
    app.command("login")(login)
    group = typer.Typer(help="Choose among several servers.", rich_markup_mode=None)
    group.command("ls")(ls)
    group.command("use")(use)
    group.command("show")(show)
    group.command("rm")(rm)
    app.add_typer(group, name="context")


def login(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server's address.", show_default=False)],
    token: Annotated[
        str | None, typer.Option("--token", help="Your token; better not given here, where others can see it.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="What to call it; by default its host.")] = None,
) -> None:
    """Use a server from now on. The token is read from standard input."""
    from urllib.parse import urlsplit

    from levada.sdk.client import Client

    if not url.startswith(("http://", "https://")):
        raise BadInput.one(f"{url}: must begin with http:// or https://")
    secret = token or os.environ.get("LEVADA_TOKEN") or _asked()
    if not secret:
        raise BadInput.one("no token was given; levada token create makes one, on the server's machine")
    with Client(url, secret, patience_s=0.0) as client:
        who = client.me()
    called = name or (urlsplit(url).hostname or "server")
    settings = config.read(config.own_file())
    known = settings.get("contexts", {})
    config.write({**settings, "context": called, "contexts": {**known, called: {"server": url, "token": secret}}})
    data(f"{who['user']} ({who['role']}) at {url}, as context {called}")


def _asked() -> str:
    if sys.stdin is not None and sys.stdin.isatty():
        from getpass import getpass

        return getpass("Token: ").strip()
    return sys.stdin.readline().strip() if sys.stdin is not None else ""


def ls(
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="How to print it.")] = TextOrJson.TEXT,
) -> None:
    """List the servers that are known by name."""
    found, current = config.contexts()
    if output is TextOrJson.JSON:
        # Tokens stay where they are.
        data_json(
            [{"name": n, "server": p.server, "state": p.state, "current": n == current} for n, p in found.items()]
        )
    elif found:
        rows = [("*" if n == current else "", n, place.server or place.state or "-") for n, place in found.items()]
        data(columns(("CURRENT", "NAME", "SERVER"), rows))
    else:
        chatter("There is no context yet: levada login URL makes one.")


def use(name: Name) -> None:
    """Use this server from now on."""
    found, _ = config.contexts()
    _demand(name, found)
    config.write({**config.read(config.own_file()), "context": name})
    data(name)


def show() -> None:
    """Show which server is meant here and now, and who you are there."""
    from levada.cli.connection import connect

    with connect(patience_s=0.0) as client:
        who = client.me()
        data(f"{client.address.url} as {who['user']} ({who['role']})")


def rm(name: Name) -> None:
    """Forget a server and its token."""
    settings = config.read(config.own_file())
    known: dict[str, Any] = dict(settings.get("contexts", {}))
    _demand(name, known)
    del known[name]
    left = {key: value for key, value in settings.items() if not (key == "context" and value == name)}
    config.write({**left, "contexts": known})
    data(name)


def _demand(name: str, known: Any) -> None:
    if name not in known:
        raise NotFound(f"there is no context {name!r}" + did_you_mean(name, known, "see levada context ls"))
