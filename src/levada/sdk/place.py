"""Where the server is, and the token to use there."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from levada.errors import BadInput, NoServer, Refused


class Address(NamedTuple):
    """A server and who one is there."""

    url: str
    token: str


def state_dir(state: str | None = None) -> str:
    """The folder in which a server of this machine keeps its state: as given, else LEVADA_STATE, else the usual one."""
    if named := state or os.environ.get("LEVADA_STATE"):
        return named
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "levada")


def find(
    url: str | None = None, token: str | None = None, state: str | None = None, *, insecure: bool = False
) -> Address:
    """The server that is meant: as given, else LEVADA_SERVER, else the one whose state is here.

    The token is the one given, else LEVADA_TOKEN; only where neither is there, the owner's that lies in the state. One
    that is empty keeps LEVADA_TOKEN from being sent, and the owner's does not stand in for it.
    Raises NoServer, which says what to do, and Refused where the token would be sent in the clear; *insecure* lets it.
    """
    mine = os.environ.get("LEVADA_TOKEN") or None
    if state is None:
        url = url or os.environ.get("LEVADA_SERVER") or None
    token = (mine if token is None else token) or None
    here = None if url and token else owners(state_dir(state))
    if here is not None and (url is None or _same(url, here.url)):
        return Address(here.url, token or ("" if mine else here.token))
    if url is None:
        raise NoServer("no server was found; start one with `levada up`, or set LEVADA_SERVER and LEVADA_TOKEN")
    if not url.startswith(("http://", "https://")):
        raise BadInput.one(f"{url!r} is no address of a server; it begins with http:// or https://")
    if token:
        demand_encrypted(url, insecure)
    return Address(url.rstrip("/"), token or "")


def demand_encrypted(url: str, insecure: bool = False) -> None:
    """Refuses to send a token where others could read it, unless *insecure* or LEVADA_INSECURE=1 says so."""
    if insecure or os.environ.get("LEVADA_INSECURE") == "1" or not url.startswith("http://") or _is_here(url):
        return
    todo = "use https://, or LEVADA_INSECURE=1 where something else encrypts"
    raise Refused(f"{url}: your token would be sent in the clear; {todo}")


def _is_here(url: str) -> bool:
    """Whether an address is one of loopback."""
    import ipaddress
    from urllib.parse import urlsplit

    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _same(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")


def owners(folder: str) -> Address | None:
    """The server of a state, as its owner; None where there is none, or what it wrote of itself is half-written."""
    try:
        with open(os.path.join(folder, "server.json"), encoding="utf-8") as file:
            written = json.load(file)
        return Address(str(written["url"]).rstrip("/"), str(written["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
