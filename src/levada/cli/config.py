"""Settings: `$XDG_CONFIG_HOME/levada/config.toml`, then `./.levada.toml`.

    server = "https://gpu.example.org"     # with its token
    token = "…"
    state = "/srv/levada"                  # or the state directory of a local server
    context = "lab"                        # or one of these

    [contexts.lab]
    server = "https://lab.example.org"
    token = "…"

A token in a file is sent only to the server of the same table, so the settings of a folder cannot leak the user's own
token. LEVADA_TOKEN is sent only to servers of flags, LEVADA_SERVER and the user's own file.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from levada.errors import BadInput, NotFound, did_you_mean

_KEYS = {"server": str, "token": str, "state": str, "context": str, "contexts": dict}

#: Settings of the working folder. Untrusted: another user may own it.
_FOLDER_FILE = ".levada.toml"


class ServerSettings(NamedTuple):
    """Address and token of a server, or its state directory. An empty token means none."""

    server: str | None = None
    token: str | None = None
    state: str | None = None


def own_file() -> str:
    """Return the path of the user's own settings."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "levada", "config.toml")


def read(path: str) -> dict[str, Any]:
    """Return the settings of a file, {} if it does not exist; raises BadInput."""
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
        raise BadInput.one(f"{path}: not valid TOML: {error}") from None
    for key, value in settings.items():
        if key not in _KEYS:
            raise BadInput.one("unknown setting" + did_you_mean(key, _KEYS), f"{path}: {key}")
        if not isinstance(value, _KEYS[key]):
            raise BadInput.one("must be text" if _KEYS[key] is str else "must be a table", f"{path}: {key}")
    for name, context in settings.get("contexts", {}).items():
        is_table = isinstance(context, dict) and all(isinstance(value, str) for value in context.values())
        if not is_table or set(context) - {"server", "token", "state"}:
            raise BadInput.one("must have server and token, or state", f"{path}: contexts.{name}")
    return settings


def contexts() -> tuple[dict[str, ServerSettings], str | None]:
    """Return the named servers of both files, and the name of the one in use."""
    servers: dict[str, ServerSettings] = {}
    current = None
    for path in (own_file(), _FOLDER_FILE):
        settings = read(path)
        servers |= {name: _server(context, path) for name, context in settings.get("contexts", {}).items()}
        current = settings.get("context", current)
    return servers, current


def find_server(context: str | None = None) -> ServerSettings:
    """Return the server *context*, or the one that the files select; empty settings if they select none."""
    for path in () if context else (_FOLDER_FILE, own_file()):
        settings = read(path)
        if "server" in settings or "state" in settings:
            return _server(settings, path)
        if "context" in settings:
            context = settings["context"]
            break
    if not context:
        return ServerSettings()
    known = contexts()[0]
    if context not in known:
        raise NotFound(f"there is no context {context!r}" + did_you_mean(context, known, "see levada context ls"))
    return known[context]


def _server(table: dict[str, Any], path: str) -> ServerSettings:
    """Return the server of a table. LEVADA_TOKEN replaces its token, except for a folder's server."""
    if path == _FOLDER_FILE:
        token = table.get("token", "")
    else:
        token = None if os.environ.get("LEVADA_TOKEN") else table.get("token")
    return ServerSettings(table.get("server"), token, table.get("state"))


def write(settings: dict[str, Any]) -> None:
    """Replace the user's own settings file; only the user can read it."""
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
    # TOML's basic strings are JSON strings, but DEL must be escaped, too.
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
