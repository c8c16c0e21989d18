"""An agent that lies: it is heard about its own nodes and the workers it was told to run, and about nothing else."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from levada.backends.local import wire
from levada.backends.local.agent import socket_url
from levada.backends.local.backend import LocalBackend
from levada.backends.local.messages import Leave, StartWorker
from levada.backends.local.remote import RemoteHost
from levada.core import events as ev
from levada.core.plan import OpKind
from tests.backends.contract import Watch, op, place
from tests.backends.local.machines import TOKEN
from tests.backends.local.test_agents import AgentsTest
from tests.patience import WAIT_S


class Liar:
    """The agent of a node `x-0` with four GPUs, which says what it likes."""

    def __init__(self, socket: ClientConnection, watch: Watch) -> None:
        self._socket, self._watch = socket, watch
        self._marks = 0

    async def say(self, kind: str, **fields: Any) -> None:
        """Sends a message."""
        await self._socket.send(json.dumps({"type": kind, **fields}))

    async def tell(self, *sightings: dict[str, Any], **news: Any) -> None:
        """Reports, and returns when the report was taken in."""
        await self.say("Told", news={"sightings": sightings, **news})
        await self.heard()

    async def heard(self) -> None:
        """Returns when all that was said so far was taken in: messages are taken in their order."""
        self._marks += 1
        mark = {"id": f"x-0/0/{self._marks}", "node": "x-0", "devices": ["3"], "milli": 1000}
        await self.say("Machine", nodes=[_node()], foreign=[mark])
        watch = self._watch

        def is_marked() -> bool:
            return any(each.id == mark["id"] for event in watch.all(ev.ForeignAppeared) for each in event.foreign)

        await watch.until(is_marked, "the mark")

    async def command(self, kind: type[Any]) -> Any:
        """The next command of a kind."""
        async with asyncio.timeout(WAIT_S):
            while True:
                message = wire.read_from_server(str(await self._socket.recv(decode=True)))
                if isinstance(message, wire.Do) and isinstance(message.command, kind):
                    return message.command

    async def question(self) -> int:
        """The number of the next question for a log."""
        async with asyncio.timeout(WAIT_S):
            while not isinstance(
                asked := wire.read_from_server(str(await self._socket.recv(decode=True))), wire.AskLog
            ):
                pass
        return asked.question

    @property
    def host(self) -> RemoteHost:
        """This agent as the server sees it."""
        backend = self._watch.backend
        assert isinstance(backend, LocalBackend)
        host = backend.hosts["x"]
        assert isinstance(host, RemoteHost)
        return host


def _node() -> dict[str, Any]:
    return {"name": "x-0", "devices": [{"id": str(at), "type": "gpu"} for at in range(4)]}


def _seen(name: str, state: str, job: str = "toy-1", **fields: Any) -> dict[str, Any]:
    return {"job": job, "name": name, "state": state, **fields}


#: What would free, fail or take over a worker of another machine.
LIES = [
    _seen("g1-0", "ended", code=0, pid=7),
    _seen("g1-0", "ended", code=1, pid=7),
    _seen("g1-0", "lost"),
    _seen("g1-0", "runs", pid=1, reading={"flags": 4, "generation": 1, "steps": 1e9}),
]


class TestLiar(AgentsTest):
    """Two honest agents, `node-0` and `node-1`, and one that lies."""

    @asynccontextmanager
    async def liar(self, watch: Watch, **fields: Any) -> AsyncIterator[Liar]:
        """The third agent joins."""
        url, headers = socket_url(f"http://127.0.0.1:{self.port}"), {"Authorization": f"Bearer {TOKEN}"}
        where = {"home": "/nowhere", "address": "127.0.0.1", "server_address": "127.0.0.1", **fields}
        async with connect(url, additional_headers=headers, proxy=None, close_timeout=1) as socket:
            liar = Liar(socket, watch)
            await liar.say("Register", version=wire.VERSION, name="x", nodes=[_node()], **where)
            await liar.say("Told", news={}, all=True)
            await liar.heard()
            yield liar

    async def running(self, watch: Watch) -> int | None:
        """Starts toy-1 on node-0; the process of its worker."""
        await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
        await watch.for_(ev.Running, 1)
        await self.up(watch, 1, 1)
        return watch.backend.workers("toy-1")[0].pid

    @staticmethod
    def nothing_ended(watch: Watch) -> bool:
        """Nobody was told that a job is over, failed, or let go of its GPUs."""
        return not [*watch.all(ev.JobsFinished), *watch.all(ev.JobsFailed), *watch.all(ev.Released)]

    @pytest.mark.parametrize("lie", LIES, ids=lambda lie: f"{lie['state']}-{lie.get('code')}")
    def test_the_end_of_a_worker_of_another_machine_is_not_believed(self, lie: dict[str, Any]) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                pid = await self.running(watch)
                async with self.liar(watch) as liar:
                    await liar.tell(lie)
                    assert liar.host.rejected == 1
                    assert self.nothing_ended(watch)
                    assert not watch.all(ev.Progress)
                    assert (await watch.backend.running())["toy-1"].running == 1
                    [worker] = watch.backend.workers("toy-1")
                    assert (worker.phase, worker.pid, worker.node) == ("Running", pid, "node-0")

        self.run(story)

    def test_nor_after_a_restart_of_the_server(self) -> None:
        async def story() -> None:
            async with self.opened(1, leave=True) as first:
                pid = await self.running(first)
            async with self.opened(2) as watch, self.liar(watch) as liar:
                await liar.tell(*LIES)
                assert self.nothing_ended(watch)
                assert [worker.pid for worker in watch.backend.workers("toy-1")] == [pid]

        self.run(story)

    def test_saves_and_progress_of_a_job_that_it_has_no_worker_of_are_not_believed(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                await self.running(watch)
                async with self.liar(watch) as liar:
                    later = 4_000_000_000 * 10**9
                    await liar.tell(kept=[{"job": "toy-1", "saved_at": later, "epochs": 50.0}])
                    assert liar.host.rejected == 1
                    # Progress is told with the next round at the latest.
                    await watch.backend.apply(op(OpKind.STOP, 2), None)
                    await watch.for_(ev.Released, 2)
                    assert not watch.all(ev.CheckpointSaved)
                    assert not watch.all(ev.Progress)

        self.run(story)

    def test_a_worker_that_it_says_to_have_neither_holds_up_a_stop_nor_a_start(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                await self.running(watch)
                async with self.liar(watch) as liar:
                    stood = {"job": "later", "number": 8, "generation": 10**9, "epoch": 1}
                    claims = [_seen("g1-5", "runs", pid=1), _seen("g1000000-0", "runs", job="later", pid=1)]
                    await liar.tell(*claims, stood=[stood])
                    assert "later" not in await watch.backend.running()
                    # All the same it must not go on with them.
                    told = [await liar.command(Leave), await liar.command(Leave)]
                    assert {(each.job, each.names) for each in told} == {
                        ("toy-1", ("g1-5",)),
                        ("later", ("g1000000-0",)),
                    }
                    await watch.backend.apply(op(OpKind.STOP, 2), None)
                    await watch.for_(ev.Released, 2)
                    start = op(OpKind.START, 1, place(0, "node-0", "0"), job="later", number=8)
                    await watch.backend.apply(start, self.launch())
                    await watch.until(lambda: len(watch.all(ev.Running)) == 2, "the start of the other job")

        self.run(story)

    def test_its_logs_are_not_shown_among_those_of_others(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                await self.running(watch)
                async with self.liar(watch) as liar:
                    await liar.tell(_seen("g9-0", "ended", code=0), _seen("g1-0", "ended", code=0))
                    lines = [line.text async for line in watch.backend.logs("toy-1")]
                    assert lines == ["up 0 1 1"]

        self.run(story)

    def test_of_the_workers_that_it_was_told_to_run_it_is_heard(self) -> None:
        async def story() -> None:
            async with self.opened() as watch, self.liar(watch) as liar:
                places = place(0, "x-0", "0"), place(0, "x-0", group="server")
                await watch.backend.apply(op(OpKind.START, 1, *places), self.launch(framework="tensorflow"))
                names = [(await liar.command(StartWorker)).name for _ in places]
                assert names == ["g1-0", "g1-ps0"]
                await liar.tell(*(_seen(name, "runs", pid=7) for name in names))
                await watch.for_(ev.Running, 1)
                await liar.tell(kept=[{"job": "toy-1", "saved_at": 4_000_000_000 * 10**9}])
                await watch.for_(ev.CheckpointSaved, 1)
                await liar.tell(*(_seen(name, "ended", code=0) for name in names))
                await watch.for_(ev.JobsFinished)
                assert liar.host.rejected == 0

        self.run(story)

    def test_a_log_that_cannot_be_read_breaks_nothing(self) -> None:
        async def story() -> None:
            async with self.opened() as watch, self.liar(watch) as liar:
                places = place(0, "x-0", "0"), place(1, "node-0", "0")
                await watch.backend.apply(op(OpKind.START, 1, *places), self.launch())
                await liar.command(StartWorker)
                await liar.tell(_seen("g1-0", "runs", pid=7))
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 1)

                async def read() -> list[str]:
                    return [line.text async for line in watch.backend.logs("toy-1")]

                reading = asyncio.create_task(read())
                chunk = {"lines": ["a line without a time"], "next": {}}
                await liar.say("LogAnswer", question=await liar.question(), chunk=chunk)
                async with asyncio.timeout(WAIT_S):
                    assert await reading == ["up 1 2 1"]
                assert liar.host.rejected == 1
                await liar.tell(_seen("g1-0", "ended", code=0))

        self.run(story)

    def test_acks_of_commands_that_were_never_given_and_ports_that_cannot_be_are_ignored(self) -> None:
        async def story() -> None:
            async with self.opened() as watch, self.liar(watch, ports=[0, 80, 70000, -1]) as liar:
                await liar.say("Took", number=10**9)
                await liar.say("Beat", ports=[22, 1 << 40])
                await liar.heard()
                assert liar.host.rejected == 1
                assert 1024 <= liar.host.take_port() <= 65535

        self.run(story)

    def test_it_cannot_say_where_the_server_is(self) -> None:
        """Workers of the server's own machine are found there by those of others."""

        async def story() -> None:
            async with self.opened() as watch, self.liar(watch, server_address="203.0.113.9"):
                backend = watch.backend
                assert isinstance(backend, LocalBackend)
                assert backend.here.address == "127.0.0.1"

        self.run(story)

    def test_what_is_rejected_is_logged_once_a_minute(self, caplog: pytest.LogCaptureFixture) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                await self.running(watch)
                async with self.liar(watch) as liar:
                    with caplog.at_level(logging.WARNING, "levada.backends.local.remote"):
                        for lie in LIES * 5:
                            await liar.tell(lie)
                    assert liar.host.rejected == len(LIES) * 5
                    logged = [record.getMessage() for record in caplog.records]
                    assert logged == ["ignoring reports of agent x (1 so far): worker g1-0 of toy-1 is on node-0"]

        self.run(story)
