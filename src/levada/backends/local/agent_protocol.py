"""Messages between a server and an agent, as JSON texts over a WebSocket.

Commands are numbered, and sent again after a reconnect until the agent acknowledges them. An agent sends its full
status after each reconnect and changes in between, so status messages need no acknowledgement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from levada.backends.local.logs import Chunk, Cursor
from levada.backends.local.supervisor_protocol import Command, StatusUpdate
from levada.core.cluster import Foreign, Node

#: A server rejects agents with another protocol version.
VERSION = 2
#: Size limit of a status message in bytes; a server accepts messages of four times this size.
_PART = 2**20


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    pass


# --- from the agent -------------------------------------------------------------------------------------------------


class Register(_Message, frozen=True, kw_only=True):
    """First message of a connection: identifies the agent and its nodes."""

    version: int
    name: str
    nodes: tuple[Node, ...]
    home: str
    #: At which other machines reach the agent, and at which it reached the server.
    address: str
    server_address: str
    ports: tuple[int, ...] = ()
    checkpoints: str = ""
    mps_pipe: str = ""
    #: Id of the agent's state directory: tells agents of the same name apart.
    id: str = ""


class StatusMessage(_Message, frozen=True, kw_only=True):
    """Changed status; with *all* the (last part of the) full status after `AgentRegistered`."""

    news: StatusUpdate
    all: bool = False


class StatusPart(_Message, frozen=True, kw_only=True):
    """Part of a full status that is too large for one message; a `StatusMessage` ends it."""

    news: StatusUpdate


class MachineReport(_Message, frozen=True, kw_only=True):
    """GPUs of the agent's machine and their foreign use."""

    nodes: tuple[Node, ...]
    foreign: tuple[Foreign, ...] = ()


class Heartbeat(_Message, frozen=True, kw_only=True):
    """Sign of life; that of an agent carries free ports."""

    ports: tuple[int, ...] = ()


class Ack(_Message, frozen=True, kw_only=True):
    """All commands up to this number were executed."""

    number: int


class LogAnswer(_Message, frozen=True, kw_only=True):
    """Answer to `AskLog`: log lines, or a position."""

    question: int
    chunk: Chunk


# --- from the server ------------------------------------------------------------------------------------------------


class AgentRegistered(_Message, frozen=True, kw_only=True, tag="Welcome"):
    """The agent has joined; commands carry this epoch."""

    epoch: int
    #: Id of the server process, which numbers its commands from 1.
    session: str


class AgentRejected(_Message, frozen=True, kw_only=True, tag="Goodbye"):
    """The agent is rejected and must not reconnect."""

    why: str


class Execute(_Message, frozen=True, kw_only=True):
    """A command; each server process numbers its commands from 1."""

    number: int
    command: Command


class AskLog(_Message, frozen=True, kw_only=True):
    """Request for log lines after *cursor*, or for the position of the last *tail* lines."""

    question: int
    job: str
    name: str
    cursor: Cursor
    rest: bool = False
    tail: int | None = None


FromAgent: TypeAlias = Register | StatusPart | StatusMessage | MachineReport | Heartbeat | Ack | LogAnswer
FromServer: TypeAlias = AgentRegistered | AgentRejected | Execute | AskLog | Heartbeat

_from_agent = msgspec.json.Decoder(FromAgent)
_from_server = msgspec.json.Decoder(FromServer)


def encode(message: FromAgent | FromServer) -> str:
    """Encode a message."""
    return msgspec.json.encode(message).decode()


def full_status(update: StatusUpdate) -> Iterator[StatusPart | StatusMessage]:
    """Split a full status into messages of about 1 MiB."""
    part: dict[str, list[Any]] = {field: [] for field in update.__struct_fields__}
    size = 0
    for field, items in part.items():
        for item in getattr(update, field):
            length = len(msgspec.json.encode(item))
            if size and size + length > _PART:
                yield StatusPart(news=_update_of(part))
                size = 0
                for sent in part.values():
                    sent.clear()
            items.append(item)
            size += length
    yield StatusMessage(news=_update_of(part), all=True)


def _update_of(part: Mapping[str, Iterable[Any]]) -> StatusUpdate:
    return StatusUpdate(**{field: tuple(items) for field, items in part.items()})


def read_from_agent(text: str) -> FromAgent:
    """Decode a message of an agent; raises msgspec.DecodeError."""
    return _from_agent.decode(text)


async def run_until_first(*sides: Coroutine[Any, Any, None]) -> None:
    """Run the sides of a connection until the first ends or fails, then cancel the others."""
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
    """Decode a message of a server; raises msgspec.DecodeError."""
    return _from_server.decode(text)
