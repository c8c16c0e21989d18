"""Settings from files: `$XDG_CONFIG_HOME/levada/config.toml`, then `./.levada.toml`, which wins.

    server = "https://gpu.example.org"     # with its token
    token = "…"
    state = "/srv/levada"                  # or the folder of a server of this machine
    context = "lab"                        # or one of these

    [contexts.lab]
    server = "https://lab.example.org"
    token = "…"

A token of a file is used with the server that the same table names, and with no other: the settings of a folder cannot
send the user's own away. Nor can they send LEVADA_TOKEN away: it is for servers of flags, LEVADA_SERVER and the user's
own file.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from levada.errors import BadInput, NotFound, did_you_mean

_KEYS = {"server": str, "token": str, "state": str, "context": str, "contexts": dict}

#: The settings of a folder, which may be anybody's.
_FOLDERS = ".levada.toml"


class Place(NamedTuple):
    """Where a server is: its address and token, or the folder of its state. Empty tokens are none."""

    server: str | None = None
    token: str | None = None
    state: str | None = None


def own_file() -> str:
    """The user's own settings."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "levada", "config.toml")


def read(path: str) -> dict[str, Any]:
    """What a file sets; nothing where there is none. Raises BadInput."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadInput.one(f"{path}: {error.strerror}") from None
    import tomllib

    try:
        settings = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput.one(f"{path}: not TOML: {error}") from None
    for key, value in settings.items():
        if key not in _KEYS:
            raise BadInput.one("unknown setting" + did_you_mean(key, _KEYS), f"{path}: {key}")
        if not isinstance(value, _KEYS[key]):
            raise BadInput.one("must be text" if _KEYS[key] is str else "must be a table", f"{path}: {key}")
    for name, context in settings.get("contexts", {}).items():
        known = isinstance(context, dict) and all(isinstance(value, str) for value in context.values())
        if not known or set(context) - {"server", "token", "state"}:
            raise BadInput.one("must hold server and token, or state", f"{path}: contexts.{name}")
    return settings


def contexts() -> tuple[dict[str, Place], str | None]:
    """The named servers of both files, and the name of the one in use."""
    found: dict[str, Place] = {}
    current = None
    for path in (own_file(), _FOLDERS):
        settings = read(path)
        found |= {name: _place(context, path) for name, context in settings.get("contexts", {}).items()}
        current = settings.get("context", current)
    return found, current


def place(context: str | None = None) -> Place:
    """The server that files name; nothing where they name none. *context* is a name that was asked for."""
    for path in () if context else (_FOLDERS, own_file()):
        settings = read(path)
        if "server" in settings or "state" in settings:
            return _place(settings, path)
        if "context" in settings:
            context = settings["context"]
            break
    if not context:
        return Place()
    known = contexts()[0]
    if context not in known:
        raise NotFound(f"there is no context {context!r}" + did_you_mean(context, known, "see levada context ls"))
    return known[context]


def _place(table: dict[str, Any], path: str) -> Place:
    """The server of a table, with the token of that table; LEVADA_TOKEN instead, but never for a folder's server."""
    if path == _FOLDERS:
        token = table.get("token", "")
    else:
        token = None if os.environ.get("LEVADA_TOKEN") else table.get("token")
    return Place(table.get("server"), token, table.get("state"))


def write(settings: dict[str, Any]) -> None:
    """Replaces the user's own settings, for their eyes only."""
    from levada.errors import LevadaError

    path = own_file()
    lines = [f"{key} = {_quoted(value)}" for key, value in settings.items() if isinstance(value, str)]
    for name, context in settings.get("contexts", {}).items():
        lines += ["", f"[contexts.{_quoted(name)}]", *(f"{key} = {_quoted(value)}" for key, value in context.items())]
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        handle = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise LevadaError(f"cannot write {path}: {error.strerror}") from None


def _quoted(text: str) -> str:
    # A basic string of TOML is written as one of JSON; DEL alone must be escaped, too.
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
