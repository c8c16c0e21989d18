"""Hostile agents: reports on foreign nodes and workers are rejected."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from levada.backends.local import agent_protocol
from levada.backends.local.agent import socket_url
from levada.backends.local.backend import LocalBackend
from levada.backends.local.remote import RemoteHost
from levada.backends.local.supervisor_protocol import Leave, StartWorker
from levada.core import events as ev
from levada.core.plan import OpKind
from tests.backends.contract import BackendWatch, op, place
from tests.backends.local.agent_network import TOKEN
from tests.backends.local.test_agents import AgentsTest
from tests.timeouts import WAIT_S


class HostileAgent:
    """The agent of a node `x-0` with four GPUs, which sends arbitrary messages."""

    def __init__(self, socket: ClientConnection, watch: BackendWatch) -> None:
        self._socket, self._watch = socket, watch
        self._marks = 0

    async def send(self, kind: str, **fields: Any) -> None:
        """Send a message."""
        await self._socket.send(json.dumps({"type": kind, **fields}))

    async def report(self, *sightings: dict[str, Any], **news: Any) -> None:
        """Send a report; return when it was handled."""
        await self.send("StatusMessage", news={"sightings": sightings, **news})
        await self.wait_handled()

    async def wait_handled(self) -> None:
        """Return when all messages so far were handled; the server handles them in order."""
        self._marks += 1
        mark = {"id": f"x-0/0/{self._marks}", "node": "x-0", "devices": ["3"], "milli": 1000}
        await self.send("MachineReport", nodes=[_node()], foreign=[mark])
        watch = self._watch

        def is_marked() -> bool:
            return any(
                foreign.id == mark["id"] for event in watch.events_of(ev.ForeignAppeared) for foreign in event.foreign
            )

        await watch.wait_until(is_marked, "the mark")

    async def command(self, kind: type[Any]) -> Any:
        """The next command of a kind."""
        async with asyncio.timeout(WAIT_S):
            while True:
                message = agent_protocol.read_from_server(str(await self._socket.recv(decode=True)))
                if isinstance(message, agent_protocol.Execute) and isinstance(message.command, kind):
                    return message.command

    async def log_request(self) -> int:
        """The number of the next log request."""
        async with asyncio.timeout(WAIT_S):
            while not isinstance(
                asked := agent_protocol.read_from_server(str(await self._socket.recv(decode=True))),
                agent_protocol.AskLog,
            ):
                pass
        return asked.question

    @property
    def host(self) -> RemoteHost:
        """The server's view of this agent."""
        backend = self._watch.backend
        assert isinstance(backend, LocalBackend)
        host = backend.hosts["x"]
        assert isinstance(host, RemoteHost)
        return host


def _node() -> dict[str, Any]:
    return {"name": "x-0", "devices": [{"id": str(at), "type": "gpu"} for at in range(4)]}


def _seen(name: str, state: str, job: str = "toy-1", **fields: Any) -> dict[str, Any]:
    return {"job": job, "name": name, "state": state, **fields}


#: Reports that would release, fail or take over a worker of another machine.
LIES = [
    _seen("g1-0", "ended", code=0, pid=7),
    _seen("g1-0", "ended", code=1, pid=7),
    _seen("g1-0", "lost"),
    _seen("g1-0", "runs", pid=1, reading={"flags": 4, "generation": 1, "steps": 1e9}),
]


class TestLiar(AgentsTest):
    """Two honest agents, `node-0` and `node-1`, and a hostile one."""

    @asynccontextmanager
    async def hostile(self, watch: BackendWatch, **fields: Any) -> AsyncIterator[HostileAgent]:
        """Let the hostile agent join."""
        url, headers = socket_url(f"http://127.0.0.1:{self.port}"), {"Authorization": f"Bearer {TOKEN}"}
        where = {"home": "/nowhere", "address": "127.0.0.1", "server_address": "127.0.0.1", **fields}
        async with connect(url, additional_headers=headers, proxy=None, close_timeout=1) as socket:
            hostile = HostileAgent(socket, watch)
            await hostile.send("Register", version=agent_protocol.VERSION, name="x", nodes=[_node()], **where)
            await hostile.send("StatusMessage", news={}, all=True)
            await hostile.wait_handled()
            yield hostile

    async def running(self, watch: BackendWatch) -> int | None:
        """Start toy-1 on node-0; return the PID of its worker."""
        await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
        await watch.wait_event(ev.Running, 1)
        await self.wait_scripts(watch, 1, 1)
        return watch.backend.workers("toy-1")[0].pid

    @staticmethod
    def nothing_ended(watch: BackendWatch) -> bool:
        """Whether no end, failure or release of a job was reported."""
        return not [*watch.events_of(ev.JobsFinished), *watch.events_of(ev.JobsFailed), *watch.events_of(ev.Released)]

    @pytest.mark.parametrize("lie", LIES, ids=lambda lie: f"{lie['state']}-{lie.get('code')}")
    async def test_an_agent_cannot_report_the_exit_of_a_foreign_worker(self, lie: dict[str, Any]) -> None:
        async with self.opened() as watch:
            pid = await self.running(watch)
            async with self.hostile(watch) as hostile:
                await hostile.report(lie)
                assert hostile.host.rejected == 1
                assert self.nothing_ended(watch)
                assert not watch.events_of(ev.Progress)
                assert (await watch.backend.running())["toy-1"].running == 1
                [worker] = watch.backend.workers("toy-1")
                assert (worker.phase, worker.pid, worker.node) == ("Running", pid, "node-0")

    async def test_an_agent_cannot_report_a_foreign_exit_after_a_server_restart(self) -> None:
        async with self.opened(1, leave=True) as first:
            pid = await self.running(first)
        async with self.opened(2) as watch, self.hostile(watch) as hostile:
            await hostile.report(*LIES)
            assert self.nothing_ended(watch)
            assert [worker.pid for worker in watch.backend.workers("toy-1")] == [pid]

    async def test_an_agent_cannot_report_progress_of_a_foreign_job(self) -> None:
        async with self.opened() as watch:
            await self.running(watch)
            async with self.hostile(watch) as hostile:
                later = 4_000_000_000 * 10**9
                await hostile.report(kept=[{"job": "toy-1", "saved_at": later, "epochs": 50.0}])
                assert hostile.host.rejected == 1
                # Progress is reported with the next poll at the latest.
                await watch.backend.apply(op(OpKind.STOP, 2), None)
                await watch.wait_event(ev.Released, 2)
                assert not watch.events_of(ev.CheckpointSaved)
                assert not watch.events_of(ev.Progress)

    async def test_an_invented_worker_blocks_neither_stop_nor_start(self) -> None:
        async with self.opened() as watch:
            await self.running(watch)
            async with self.hostile(watch) as hostile:
                stood = {"job": "later", "number": 8, "generation": 10**9, "epoch": 1}
                claims = [_seen("g1-5", "runs", pid=1), _seen("g1000000-0", "runs", job="later", pid=1)]
                await hostile.report(*claims, stood=[stood])
                assert "later" not in await watch.backend.running()
                # The server still stops the invented workers.
                commands = [await hostile.command(Leave), await hostile.command(Leave)]
                assert {(command.job, command.names) for command in commands} == {
                    ("toy-1", ("g1-5",)),
                    ("later", ("g1000000-0",)),
                }
                await watch.backend.apply(op(OpKind.STOP, 2), None)
                await watch.wait_event(ev.Released, 2)
                start = op(OpKind.START, 1, place(0, "node-0", "0"), job="later", number=8)
                await watch.backend.apply(start, self.launch())
                await watch.wait_until(lambda: len(watch.events_of(ev.Running)) == 2, "the start of the other job")

    async def test_logs_of_invented_workers_are_not_shown(self) -> None:
        async with self.opened() as watch:
            await self.running(watch)
            async with self.hostile(watch) as hostile:
                await hostile.report(_seen("g9-0", "ended", code=0), _seen("g1-0", "ended", code=0))
                lines = [line.text async for line in watch.backend.logs("toy-1")]
                assert lines == ["up 0 1 1"]

    async def test_reports_on_own_workers_are_accepted(self) -> None:
        async with self.opened() as watch, self.hostile(watch) as hostile:
            places = place(0, "x-0", "0"), place(0, "x-0", group="server")
            await watch.backend.apply(op(OpKind.START, 1, *places), self.launch(framework="tensorflow"))
            names = [(await hostile.command(StartWorker)).name for _ in places]
            assert names == ["g1-0", "g1-ps0"]
            await hostile.report(*(_seen(name, "runs", pid=7) for name in names))
            await watch.wait_event(ev.Running, 1)
            await hostile.report(kept=[{"job": "toy-1", "saved_at": 4_000_000_000 * 10**9}])
            await watch.wait_event(ev.CheckpointSaved, 1)
            await hostile.report(*(_seen(name, "ended", code=0) for name in names))
            await watch.wait_event(ev.JobsFinished)
            assert hostile.host.rejected == 0

    async def test_an_unreadable_log_breaks_nothing(self) -> None:
        async with self.opened() as watch, self.hostile(watch) as hostile:
            places = place(0, "x-0", "0"), place(1, "node-0", "0")
            await watch.backend.apply(op(OpKind.START, 1, *places), self.launch())
            await hostile.command(StartWorker)
            await hostile.report(_seen("g1-0", "runs", pid=7))
            await watch.wait_event(ev.Running, 1)
            await self.wait_scripts(watch, 1, 1)

            async def read() -> list[str]:
                return [line.text async for line in watch.backend.logs("toy-1")]

            reading = asyncio.create_task(read())
            chunk = {"lines": ["a line without a time"], "next": {}}
            await hostile.send("LogAnswer", question=await hostile.log_request(), chunk=chunk)
            async with asyncio.timeout(WAIT_S):
                assert await reading == ["up 1 2 1"]
            assert hostile.host.rejected == 1
            await hostile.report(_seen("g1-0", "ended", code=0))

    async def test_invalid_acks_and_ports_are_ignored(self) -> None:
        async with self.opened() as watch, self.hostile(watch, ports=[0, 80, 70000, -1]) as hostile:
            await hostile.send("Ack", number=10**9)
            await hostile.send("Heartbeat", ports=[22, 1 << 40])
            await hostile.wait_handled()
            assert hostile.host.rejected == 1
            assert 1024 <= hostile.host.take_port() <= 65535

    async def test_an_agent_cannot_change_the_server_address(self) -> None:
        """Workers of other machines connect to workers on the server at this address."""

        async with self.opened() as watch, self.hostile(watch, server_address="203.0.113.9"):
            backend = watch.backend
            assert isinstance(backend, LocalBackend)
            assert backend.here.address == "127.0.0.1"

    async def test_rejections_are_logged_once_per_minute(self, caplog: pytest.LogCaptureFixture) -> None:
        async with self.opened() as watch:
            await self.running(watch)
            async with self.hostile(watch) as hostile:
                with caplog.at_level(logging.WARNING, "levada.backends.local.remote"):
                    for lie in LIES * 5:
                        await hostile.report(lie)
                assert hostile.host.rejected == len(LIES) * 5
                logged = [record.getMessage() for record in caplog.records]
                assert logged == ["ignoring reports of agent x (1 so far): worker g1-0 of toy-1 is on node-0"]
