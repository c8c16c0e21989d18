"""What a server and the agent of another machine say to each other: one JSON text each.

Commands are numbered and repeated after a reconnect until the agent has said that it took them. What an agent sees is
told whole after each reconnect and by its changes in between, so nothing of it need be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from levada.backends.local.logs import Chunk, Cursor
from levada.backends.local.messages import Command, News
from levada.core.cluster import Foreign, Node

#: A server and an agent that speak another version part with a sentence.
VERSION = 1
#: A part of what an agent tells, in bytes; a server takes four times as much in one message.
_PART = 2**20


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    pass


# --- from the agent ---------------------------------------------------------------------------------------------------


class Register(_Message, frozen=True, kw_only=True):
    """The first word: who this is, and all that it sees."""

    version: int
    name: str
    nodes: tuple[Node, ...]
    home: str
    #: Where other machines find it, and where it found the server.
    address: str
    server_address: str
    ports: tuple[int, ...] = ()
    checkpoints: str = ""
    mps_pipe: str = ""
    #: Of the agent's folder: another one of the same name is another machine, or another agent of this one.
    id: str = ""


class Told(_Message, frozen=True, kw_only=True):
    """What has changed; *all* of it after a welcome."""

    news: News
    all: bool = False


class Part(_Message, frozen=True, kw_only=True):
    """Some of all, where it is too much for one message; more parts follow, and at last what is `Told`."""

    news: News


class Machine(_Message, frozen=True, kw_only=True):
    """Its GPUs, and what others do with them."""

    nodes: tuple[Node, ...]
    foreign: tuple[Foreign, ...] = ()


class Beat(_Message, frozen=True, kw_only=True):
    """Still there. An agent sends ports that are free."""

    ports: tuple[int, ...] = ()


class Took(_Message, frozen=True, kw_only=True):
    """The command of that number was taken, and all before it."""

    number: int


class LogAnswer(_Message, frozen=True, kw_only=True):
    """Lines of a worker, or the place where some begin."""

    question: int
    chunk: Chunk


# --- from the server --------------------------------------------------------------------------------------------------


class Welcome(_Message, frozen=True, kw_only=True):
    """The agent is one of ours; commands are of this epoch."""

    epoch: int
    #: Of this server: numbers of commands are its own.
    session: str


class Goodbye(_Message, frozen=True, kw_only=True):
    """The agent cannot join, and trying again does not help."""

    why: str


class Do(_Message, frozen=True, kw_only=True):
    """A command. Numbers begin anew with each server."""

    number: int
    command: Command


class AskLog(_Message, frozen=True, kw_only=True):
    """Wants lines after a place, or the place where the last *tail* lines begin."""

    question: int
    job: str
    name: str
    cursor: Cursor
    rest: bool = False
    tail: int | None = None


FromAgent: TypeAlias = Register | Part | Told | Machine | Beat | Took | LogAnswer
FromServer: TypeAlias = Welcome | Goodbye | Do | AskLog | Beat

_from_agent = msgspec.json.Decoder(FromAgent)
_from_server = msgspec.json.Decoder(FromServer)


def encode(message: FromAgent | FromServer) -> str:
    """A message as text."""
    return msgspec.json.encode(message).decode()


def all_of(news: News) -> Iterator[Part | Told]:
    """All that an agent sees, in as many messages as it takes."""
    rest: dict[str, list[Any]] = {field: [] for field in news.__struct_fields__}
    size = 0
    for field, found in rest.items():
        for each in getattr(news, field):
            length = len(msgspec.json.encode(each))
            if size and size + length > _PART:
                yield Part(news=_news_of(rest))
                size = 0
                for told in rest.values():
                    told.clear()
            found.append(each)
            size += length
    yield Told(news=_news_of(rest), all=True)


def _news_of(found: Mapping[str, Iterable[Any]]) -> News:
    return News(**{field: tuple(each) for field, each in found.items()})


def read_from_agent(text: str) -> FromAgent:
    """A message of an agent; raises msgspec.DecodeError."""
    return _from_agent.decode(text)


async def converse(*sides: Coroutine[Any, Any, None]) -> None:
    """Speaks and listens until one of both ends, or breaks: who only listens, or only speaks, is out of reach."""
    tasks = [asyncio.create_task(side) for side in sides]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def read_from_server(text: str) -> FromServer:
    """A message of a server; raises msgspec.DecodeError."""
    return _from_server.decode(text)
