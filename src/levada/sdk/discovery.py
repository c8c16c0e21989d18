"""Find the server and the token to use."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from levada.errors import BadInput, NoServer, Refused


class Address(NamedTuple):
    """URL and token of a server."""

    url: str
    token: str


def state_dir(state: str | None = None) -> str:
    """Return the state directory: *state*, else LEVADA_STATE, else the default."""
    if folder := state or os.environ.get("LEVADA_STATE"):
        return folder
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "levada")


def find(
    url: str | None = None, token: str | None = None, state: str | None = None, *, insecure: bool = False
) -> Address:
    """Return the server: *url*, else LEVADA_SERVER, else the local one of the state directory.

    The token is *token*, else LEVADA_TOKEN, else the owner's from the state directory. An empty *token* disables
    LEVADA_TOKEN, and the owner's token is not used instead of it.
    Raises NoServer, and Refused if the token would be sent in the clear, unless *insecure*.
    """
    own = os.environ.get("LEVADA_TOKEN") or None
    if state is None:
        url = url or os.environ.get("LEVADA_SERVER") or None
    token = (own if token is None else token) or None
    local = None if url and token else owners(state_dir(state))
    if local is not None and (url is None or _is_same(url, local.url)):
        return Address(local.url, token or ("" if own else local.token))
    if url is None:
        raise NoServer("no server was found; start one with `levada up`, or set LEVADA_SERVER and LEVADA_TOKEN")
    if not url.startswith(("http://", "https://")):
        raise BadInput.one(f"{url!r} is not a server address; it must start with http:// or https://")
    if token:
        require_encryption(url, insecure)
    return Address(url.rstrip("/"), token or "")


def require_encryption(url: str, insecure: bool = False) -> None:
    """Raise Refused for plain HTTP to another machine, unless *insecure* or LEVADA_INSECURE=1."""
    if insecure or os.environ.get("LEVADA_INSECURE") == "1" or not url.startswith("http://") or _is_loopback(url):
        return
    todo = "use https://, or LEVADA_INSECURE=1 behind a TLS proxy"
    raise Refused(f"{url}: your token would be sent in the clear; {todo}")


def _is_loopback(url: str) -> bool:
    import ipaddress
    from urllib.parse import urlsplit

    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_same(url: str, other: str) -> bool:
    return url.rstrip("/") == other.rstrip("/")


def owners(folder: str) -> Address | None:
    """Return the local server with its owner's token; None if no valid `server.json` exists."""
    try:
        with open(os.path.join(folder, "server.json"), encoding="utf-8") as file:
            server = json.load(file)
        return Address(str(server["url"]).rstrip("/"), str(server["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
