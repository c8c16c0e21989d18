"""Machines that join over a connection: all that any backend must do, and what happens when they are cut off."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from levada.backends.local import wire
from levada.backends.local.agent import Agent, run_agent, socket_url
from levada.backends.local.backend import LocalBackend
from levada.backends.local.devices import pretend_nodes
from levada.backends.local.messages import ENDED, LOST, RUNS, Forget, Kept, News, Sighting, StartWorker
from levada.backends.local.processes import Spec
from levada.backends.local.remote import Known, RemoteHost
from levada.backends.local.worker import Worker
from levada.backends.protocol import Launch
from levada.core import events as ev
from levada.core.cluster import Foreign
from levada.core.plan import OpKind
from levada.errors import BadInput, Refused
from tests.backends.contract import Contract, Watch, op, place
from tests.backends.local.machines import MOST_MESSAGE, TOKEN, Wire, free_port, served
from tests.backends.local.test_backend import LocalTest
from tests.backends.local.test_elastic import SCRIPT
from tests.patience import WAIT_S


class AgentsTest(LocalTest):
    """Two agents with a node each, and a server with none. Agents outlive the server."""

    silence_s = 30.0

    @pytest.fixture(autouse=True)
    def _ports(self, tmp_path: Path) -> None:
        self.port = free_port()
        self.saves = tmp_path / "saves"
        self.agents: dict[str, asyncio.Task[None]] = {}
        self.through: dict[str, int] = {}
        self.folders: dict[str, Path] = {}

    def make(self) -> LocalBackend:
        return LocalBackend(self.home, (), checkpoints=self.saves, silence_s=self.silence_s)

    def join(self, name: str) -> None:
        """The agent of a machine starts, unless it runs."""
        if name not in self.agents:
            nodes = pretend_nodes([{"gpu": 4}, {"gpu": 4}])
            node = next(node for node in nodes if node.name == name)
            self.agents[name] = asyncio.create_task(
                run_agent(
                    f"http://127.0.0.1:{self.through.get(name, self.port)}",
                    TOKEN,
                    nodes=[node],
                    state=self.folders.get(name, self.home.parent / f"state-{name}"),
                    name=name,
                    checkpoints=self.saves,
                    silence_s=min(self.silence_s, 5.0),
                )
            )

    @asynccontextmanager
    async def opened(
        self, epoch: int = 1, *, leave: bool = False, foreign: tuple[Foreign, ...] = ()
    ) -> AsyncIterator[Watch]:
        backend = self.make()
        watch = Watch(backend, await backend.open(epoch, foreign))
        try:
            async with served(backend, "127.0.0.1", self.port):
                for name in ("node-0", "node-1"):
                    self.join(name)
                await watch.until(lambda: self.connected(watch) == {"node-0", "node-1"}, "both agents")
                watch.events = [event for event in watch.events if not isinstance(event, ev.NodesAdded)]
                yield watch
                if not leave:
                    await self.stop_all(watch)
        finally:
            await watch.end()
            await backend.close()
            if not leave:
                for agent in self.agents.values():
                    agent.cancel()
                await asyncio.gather(*self.agents.values(), return_exceptions=True)

    @staticmethod
    def connected(watch: Watch) -> set[str]:
        """The machines that are heard."""
        backend = watch.backend
        assert isinstance(backend, LocalBackend)
        return {name for name, host in backend.hosts.items() if name and host.connected and not host.lost}


class TestAgentContract(AgentsTest, Contract):
    """Everything of the contract, on machines that joined."""

    def test_an_older_epoch_is_refused(self) -> None:
        async def story() -> None:
            async with self.opened(epoch=2, leave=True):
                pass
            old = LocalBackend(self.home.parent / "elsewhere", ())
            await old.open(1)
            try:
                async with served(old, "127.0.0.1", self.port):
                    for _ in range(50):
                        await asyncio.sleep(0.02)
                        assert (await old.cluster()).nodes == ()
            finally:
                await old.close()
            async with self.opened(epoch=3):
                pass

        self.run(story)


class TestCutOff(AgentsTest):
    """The wire to one machine is cut, or slow."""

    silence_s = 1.5

    def elastic(self) -> Launch:
        (self.here / "elastic.py").write_text(SCRIPT)
        command = (sys.executable, "-u", str(self.here / "elastic.py"), str(self.here))
        return Launch(command=command, workdir=str(self.here), grace_s=20.0, max_workers=8)

    @asynccontextmanager
    async def wired(self) -> AsyncIterator[tuple[Watch, Wire]]:
        """node-1 is at the end of a wire."""
        async with Wire(self.port) as wire:
            self.through = {"node-1": wire.port}
            async with self.opened() as watch:
                yield watch, wire

    def test_a_short_silence_changes_nothing(self) -> None:
        async def story() -> None:
            async with self.wired() as (watch, wire):
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-1", "0")), self.launch())
                await watch.for_(ev.Running, 1)
                pid = watch.backend.workers("toy-1")[0].pid
                wire.cut()
                await asyncio.sleep(0.5)
                wire.mend()
                self.say("go", "0")
                await watch.for_(ev.JobsFinished)
                assert not watch.all(ev.NodesLost)
                assert watch.backend.workers("toy-1")[0].pid == pid

        self.run(story)

    def test_a_machine_that_is_silent_for_long_is_lost_and_its_workers_stop_when_it_is_back(self) -> None:
        async def story() -> None:
            async with self.wired() as (watch, wire):
                launch = self.launch()
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-1", "0")), launch)
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 2)
                wire.cut()
                lost = await watch.for_(ev.NodesLost)
                assert lost.names == ("node-1",)
                assert [node.name for node in (await watch.backend.cluster()).nodes] == ["node-0"]
                # What the engine does then: what is left stops, and starts again where there is room.
                await watch.backend.apply(op(OpKind.STOP, 2), None)
                await watch.for_(ev.Released, 2)
                await watch.backend.apply(op(OpKind.START, 3, place(0, "node-0", "0")), launch)
                await watch.for_(ev.Running, 3)
                left = int((self.here / "up-1-1").read_text())
                assert Path(f"/proc/{left}").exists(), "whoever is cut off trains on"
                wire.mend()
                back = await watch.for_(ev.NodesAdded)
                assert [node.name for node in back.nodes] == ["node-1"]
                await watch.until(lambda: not Path(f"/proc/{left}").exists(), "the end of the stray worker")
                assert [one.phase for one in watch.backend.workers("toy-1")] == ["Running"]
                assert not watch.all(ev.JobsFailed)

        self.run(story)

    def test_a_start_that_a_lost_machine_never_heard_of_is_not_done_when_it_is_back(self) -> None:
        async def story() -> None:
            async with self.wired() as (watch, wire):
                wire.cut()
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-1", "0")), self.launch())
                await watch.for_(ev.NodesLost)
                # What the engine does then: it starts where there is room.
                await watch.backend.apply(op(OpKind.STOP, 2), None)
                await watch.for_(ev.Released, 2)
                await watch.backend.apply(op(OpKind.START, 3, place(0, "node-0", "0")), self.launch())
                await watch.for_(ev.Running, 3)
                await self.up(watch, 3, 1)
                wire.mend()
                await watch.for_(ev.NodesAdded)
                await watch.backend.apply(
                    op(OpKind.START, 1, place(0, "node-1", "1"), job="b", number=8), self.launch()
                )
                await watch.until(lambda: watch.backend.workers("b") and watch.backend.workers("b")[0].pid, "the next")
                assert not (self.home.parent / "state-node-1" / "jobs" / "toy-1" / "workers" / "g1-0").exists()

        self.run(story)

    def test_another_machine_may_take_the_name_of_one_that_is_lost_and_does_nothing_of_its_work(self) -> None:
        async def story() -> None:
            async with self.wired() as (watch, wire):
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-1", "0")), self.launch())
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 1)
                pid = int((self.here / "up-1-0").read_text())
                first = self.agents.pop("node-1")
                wire.cut()
                await watch.for_(ev.NodesLost)
                # Commands for the first are on their way when the second comes.
                await watch.backend.apply(op(OpKind.STOP, 2), None)
                await watch.for_(ev.Released, 2)
                self.through = {}
                self.folders["node-1"] = self.home.parent / "another-machine"
                self.join("node-1")
                await watch.for_(ev.NodesAdded)
                assert [one.phase for one in watch.backend.workers("toy-1") if one.phase == "Running"] == []
                await watch.backend.apply(op(OpKind.START, 3, place(0, "node-1", "0")), self.launch())
                await watch.for_(ev.Running, 3)
                assert int((self.here / "up-3-0").read_text()) != pid
                wire.mend()
                with pytest.raises(Refused, match="another agent is called node-1"):
                    await asyncio.wait_for(first, WAIT_S)
                assert not self.agents["node-1"].done()
                os.kill(pid, signal.SIGKILL)

        self.run(story)

    def test_survivors_of_a_lost_machine_go_on(self) -> None:
        async def story() -> None:
            async with self.wired() as (watch, wire):
                places = [place(0, "node-0", "0"), place(1, "node-1", "0"), place(2, "node-0", "1")]
                await watch.backend.apply(op(OpKind.START, 1, *places), self.elastic())
                await watch.for_(ev.ResizesInPlace, 1)
                wire.cut()
                await self.lose("toy-1", 1)
                await watch.for_(ev.NodesLost)
                await watch.until(lambda: not watch.backend.gangs["toy-1"].busy, "a world of two")  # type: ignore[attr-defined]
                assert (await watch.backend.running())["toy-1"].running == 2
                assert not watch.all(ev.WorkersFailed), "the loss of the node says it all"
                assert not watch.all(ev.JobsFailed)
                wire.mend()
                await watch.for_(ev.NodesAdded)
                self.say("end")
                await watch.for_(ev.JobsFinished)

        self.run(story)

    def test_a_slow_wire_is_no_loss(self) -> None:
        async def story() -> None:
            async with self.wired() as (watch, wire):
                wire.delay_s = 0.3
                await watch.backend.apply(
                    op(OpKind.START, 1, place(0, "node-1", "0"), place(1, "node-0", "1")), self.launch()
                )
                await watch.for_(ev.Running, 1)
                lines = [line.text async for line in watch.backend.logs("toy-1", worker="0")]
                assert lines == ["up 0 2 1"]
                await watch.backend.apply(op(OpKind.STOP, 2), None)
                await watch.for_(ev.Released, 2)
                assert not watch.all(ev.NodesLost)

        self.run(story)

    def test_a_server_that_slept_holds_nobody_for_lost(self) -> None:
        async def story() -> None:
            async with self.wired() as (watch, wire):
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-1", "0")), self.launch())
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 1)
                time.sleep(3 * self.silence_s)  # nothing of this process runs, the server's loop neither
                await watch.backend.apply(op(OpKind.STOP, 2), None)
                await watch.for_(ev.Released, 2)
                assert not watch.all(ev.NodesLost)
                wire.cut()
                await watch.for_(ev.NodesLost)
                wire.mend()
                await watch.for_(ev.NodesAdded)

        self.run(story)

    def test_a_machine_that_does_not_come_back_after_a_restart_of_the_server_is_lost(self) -> None:
        async def story() -> None:
            async with self.opened(1, leave=True) as first:
                await first.backend.apply(
                    op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-1", "0")), self.launch()
                )
                await first.for_(ev.Running, 1)
                await self.up(first, 1, 2)
            gone = self.agents["node-1"]
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            backend = self.make()
            watch = Watch(backend, await backend.open(2))
            try:
                async with served(backend, "127.0.0.1", self.port):
                    names = [node.name for node in (await backend.cluster()).nodes]
                    assert names == ["node-0", "node-1"], "they are believed to be there"
                    assert (await backend.running())["toy-1"].running == 2
                    lost = await watch.for_(ev.NodesLost)
                    assert lost.names == ("node-1",)
                    del self.agents["node-1"]
                    self.join("node-1")
                    await watch.for_(ev.NodesAdded)
                    await self.stop_all(watch)
            finally:
                await watch.end()
                await backend.close()
                for agent in self.agents.values():
                    agent.cancel()
                await asyncio.gather(*self.agents.values(), return_exceptions=True)

        self.run(story)


class TestCommands:
    """An agent whose server is played, so that it says things twice."""

    def test_commands_that_are_repeated_after_a_reconnect_are_not_done_again(self, tmp_path: Path) -> None:
        """Else a worker would run again whose job has been forgotten meanwhile."""
        ran = tmp_path / "ran"

        def start(number: int, name: str) -> wire.Do:
            argv = ["sh", "-c", f"echo {name} >> {ran}"]
            spec = Spec(argv=argv, env={"PATH": os.environ["PATH"]}, cwd=str(tmp_path))
            command = StartWorker(job="toy-1", epoch=1, number=7, generation=1, name=name, spec=spec)
            return wire.Do(number=number, command=command)

        first = start(1, "g1-0")
        forget = wire.Do(number=2, command=Forget(job="toy-1", epoch=1))
        connections: list[list[wire.Do]] = [[first, forget], [first, forget, start(3, "g2-0")]]
        done = asyncio.Event()

        async def handle(connection: ServerConnection) -> None:
            async def heard(true: Callable[[wire.FromAgent], bool]) -> None:
                while not true(wire.read_from_agent(str(await connection.recv(decode=True)))):
                    pass

            await heard(lambda message: isinstance(message, wire.Register))
            await connection.send(wire.encode(wire.Welcome(epoch=1, session="one server")))
            for command in connections.pop(0):
                await connection.send(wire.encode(command))
                if isinstance(command.command, StartWorker) and command.number not in taken:
                    await heard(lambda message: isinstance(message, wire.Told) and _has_ended(message))
                else:
                    await heard(lambda message: message == wire.Took(number=command.number))  # noqa: B023  # awaited within the round
                taken.add(command.number)
            if not connections:
                done.set()

        taken: set[int] = set()

        async def story() -> None:
            port = free_port()
            async with serve(handle, "127.0.0.1", port):
                nodes = pretend_nodes([{"gpu": 1}])
                agent = asyncio.create_task(
                    run_agent(f"http://127.0.0.1:{port}", TOKEN, nodes=nodes, state=tmp_path / "state", name="x")
                )
                async with asyncio.timeout(WAIT_S):
                    await done.wait()
                agent.cancel()
                await asyncio.gather(agent, return_exceptions=True)
            assert ran.read_text().split() == ["g1-0", "g2-0"]

        asyncio.run(story())


def _has_ended(told: wire.Told) -> bool:
    return any(seen.state == ENDED for seen in told.news.sightings)


class TestBreakingOff(AgentsTest):
    """What nobody can say, or take in, ends one conversation; the next one begins with all there is to say."""

    @pytest.mark.parametrize("side", ["the agent", "the server"])
    def test_a_conversation_that_broke_off_is_taken_up_again(self, side: str, tmp_path: Path) -> None:
        async def story() -> None:
            backend = self.make()
            watch = Watch(backend, await backend.open(1))
            nodes = pretend_nodes([{"gpu": 1}])
            agent = Agent(
                f"http://127.0.0.1:{self.port}", TOKEN, nodes=nodes, state=tmp_path / "x", name="x", silence_s=600.0
            )
            try:
                async with served(backend, "127.0.0.1", self.port):
                    running = asyncio.create_task(agent.run())
                    await watch.until(lambda: self.connected(watch) == {"x"}, "the agent")
                    if side == "the agent":
                        assert agent._outbox is not None
                        agent._outbox.put_nowait(object())  # type: ignore[arg-type]  # what no agent would send
                    else:
                        host = backend.hosts["x"]
                        assert isinstance(host, RemoteHost)
                        host._outbox.put_nowait(object())  # type: ignore[arg-type]  # nor a server
                    first = agent._outbox
                    await watch.until(lambda: agent._outbox not in (None, first), "the next conversation")
                    await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                    await watch.for_(ev.Running, 1)
                    await self.stop_all(watch)
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)
            finally:
                await watch.end()
                await backend.close()

        self.run(story)


class TestPast(AgentsTest):
    """A machine that has seen many workers end."""

    def test_an_agent_of_many_past_workers_joins_again(self, tmp_path: Path) -> None:
        """All that it tells is more than a server takes in one message; nothing that runs is lost."""

        async def story() -> None:
            backend = self.make()
            watch = Watch(backend, await backend.open(1))
            nodes = pretend_nodes([{"gpu": 1}])
            agent = Agent(f"http://127.0.0.1:{self.port}", TOKEN, nodes=nodes, state=tmp_path / "x", name="x")
            running = asyncio.create_task(agent.run())
            try:
                async with served(backend, "127.0.0.1", self.port):
                    await watch.until(lambda: self.connected(watch) == {"x"}, "the agent")
                    await backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                    await watch.for_(ev.Running, 1)
                await watch.until(lambda: not self.connected(watch), "the agent is cut off")
                [job] = agent._supervisor.jobs.values()
                [(alive, worker)] = job.workers.items()
                past = [f"g0-{number}" for number in range(6000)]
                for name in past:
                    seen = Sighting(job=job.id, name=name, state=ENDED, code=0, why="ended long ago; " * 60)
                    job.workers[name] = Worker(worker.folder, seen, lambda *_: None)
                backend.gangs[job.id].record.placed.update(dict.fromkeys(past, "node-0"))
                assert len(wire.encode(wire.Told(news=agent._supervisor.everything(), all=True))) > MOST_MESSAGE
                async with served(backend, "127.0.0.1", self.port):
                    await watch.until(lambda: self.connected(watch) == {"x"}, "the agent again")
                    known = backend.hosts["x"].workers(job.id)
                    assert known[alive].state == RUNS
                    assert {known[name].state for name in past} == {ENDED}
                    await self.stop_all(watch)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await watch.end()
                await backend.close()

        self.run(story)

    def test_what_is_in_no_part_is_lost(self) -> None:
        node = pretend_nodes([{"gpu": 1}])
        host = RemoteHost(Known(name="x", address="127.0.0.1", home="/nowhere", nodes=tuple(node)))
        told, untold = (Sighting(job=job, name="g1-0", state=RUNS) for job in ("told", "untold"))
        host.assume(told)
        host.assume(untold)
        rest = (Sighting(job=f"old-{n}", name="g1-0", state=ENDED, why="x" * 1000) for n in range(3000))
        *parts, last = wire.all_of(News(sightings=(told, *rest), kept=(Kept(job="told", saved_at=7),)))
        assert parts
        assert isinstance(last, wire.Told)
        assert last.all
        for part in parts:
            host.gather(part.news)
            assert not host.connected
        news = host.learn(last)
        assert host.connected
        assert host.workers("told")["g1-0"].state == RUNS
        assert host.workers("untold")["g1-0"].state == LOST
        assert len(news.sightings) == 3002
        assert news.kept == (Kept(job="told", saved_at=7),)


class TestJoining(AgentsTest):
    """Who may join."""

    async def refused(self, **fields: object) -> str:
        """Why an agent is not wanted."""
        told = {"nodes": pretend_nodes([{"gpu": 1}], prefix="x"), "name": "x", **fields}
        joining = run_agent(
            f"http://127.0.0.1:{self.port}", str(told.pop("token", TOKEN)), state=self.home.parent / "x", **told
        )  # type: ignore[arg-type]
        with pytest.raises(Refused) as refused:
            await asyncio.wait_for(joining, 30)
        return str(refused.value)

    def test_an_agent_that_cannot_join_is_told_why(self) -> None:
        async def story() -> None:
            async with self.opened():
                assert "--token" in await self.refused(token="wrong")
                assert "node-0" in await self.refused(nodes=pretend_nodes([{"gpu": 1}]))
                assert "--name" in await self.refused(name="")

        self.run(story)

    def test_an_address_that_is_none_is_refused(self) -> None:
        assert socket_url("https://host:1/levada/") == "wss://host:1/levada/api/v1/agents/connect"
        for bad in ("host:1", "ftp://host", "http://"):
            with pytest.raises(BadInput, match="no server's address"):
                socket_url(bad)

    def test_another_machine_of_the_same_name_is_refused_while_the_first_is_there(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                node = [node for node in pretend_nodes([{"gpu": 4}, {"gpu": 4}]) if node.name == "node-1"]
                assert "another agent is called node-1" in await self.refused(name="node-1", nodes=node)
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-1", "0")), self.launch())
                await watch.for_(ev.Running, 1)
                assert not self.agents["node-1"].done()

        self.run(story)

    async def claim(self, *messages: object, then: Callable[[], bool], watch: Watch) -> wire.FromServer:
        """Speaks as an agent that says what it likes, until *then*; the first answer."""
        url, headers = socket_url(f"http://127.0.0.1:{self.port}"), {"Authorization": f"Bearer {TOKEN}"}
        async with connect(url, additional_headers=headers, proxy=None, close_timeout=1) as socket:
            for message in messages:
                await socket.send(json.dumps(message))
            await watch.until(then, "what it said has been heard")
            async with asyncio.timeout(WAIT_S):
                return wire.read_from_server(str(await socket.recv(decode=True)))

    def register(self, name: str, *nodes: str, **more: object) -> dict[str, object]:
        told = [{"name": node, "devices": [{"id": "0", "type": "gpu"}]} for node in nodes]
        where = {"home": "/nowhere", "address": "127.0.0.1", "server_address": "127.0.0.1"}
        return {"type": "Register", "version": wire.VERSION, "name": name, "nodes": told, **where, **more}

    def test_an_agent_tells_of_its_own_nodes_alone(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                before = {node.name: node for node in (await watch.backend.cluster()).nodes}
                heard_all = {"type": "Told", "news": {}, "all": True}
                ghost = {"job": "../../ghost", "number": 1, "generation": 3, "epoch": 0}
                seen = {"job": "../../ghost", "name": "g1-0", "state": "runs", "pid": 1}
                odd = {"job": "odd", "name": "../..", "state": "runs"}
                lies = {"type": "Told", "news": {"sightings": [seen, odd], "stood": [ghost]}}
                stolen = {"type": "Machine", "nodes": [{"name": "node-0"}], "foreign": []}
                larger = [{"name": "x-0", "devices": [{"id": "0", "type": "gpu"}, {"id": "1", "type": "gpu"}]}]
                good = {"id": "x-0/0/7", "node": "x-0", "devices": ["0"], "milli": 1000}
                foreign = [good, {**good, "id": "node-0/0/1", "node": "node-0"}, {**good, "id": "reservation:x-0"}]
                own = {"type": "Machine", "nodes": larger, "foreign": [*foreign, {**good, "milli": -5}]}
                await self.claim(
                    self.register("x", "x-0"),
                    heard_all,
                    stolen,
                    lies,
                    own,
                    watch=watch,
                    then=lambda: bool(watch.all(ev.ForeignAppeared)),
                )
                changed = [node for event in watch.all(ev.NodesChanged) for node in event.nodes]
                assert [(node.name, len(node.devices)) for node in changed] == [("x-0", 2)]
                appeared = [each.id for event in watch.all(ev.ForeignAppeared) for each in event.foreign]
                assert appeared == ["x-0/0/7"]
                after = {node.name: node for node in (await watch.backend.cluster()).nodes}
                assert {name: after[name] for name in before} == before
                assert "../../ghost" not in watch.backend.gangs  # type: ignore[attr-defined]  # of LocalBackend
                assert "odd" not in watch.backend.gangs  # type: ignore[attr-defined]  # of LocalBackend
                assert not (self.home.parent / "ghost").exists()

        self.run(story)

    def test_what_others_used_before_a_restart_of_the_server_is_gone_when_its_machine_says_so(self) -> None:
        used = Foreign(id="x-0/0/7", node="x-0", devices=("0",), milli=1000)

        async def story() -> None:
            async with self.opened(foreign=(used,)) as watch:
                assert not watch.all(ev.ForeignGone), "its agent has not joined"
                nodes = [{"name": "x-0", "devices": [{"id": "0", "type": "gpu"}]}]
                await self.claim(
                    self.register("x", "x-0"),
                    {"type": "Told", "news": {}, "all": True},
                    {"type": "Machine", "nodes": nodes, "foreign": []},
                    watch=watch,
                    then=lambda: bool(watch.all(ev.ForeignGone)),
                )
                assert [event.ids for event in watch.all(ev.ForeignGone)] == [("x-0/0/7",)]

        self.run(story)

    def test_names_that_are_none_are_refused(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                for name, nodes in (("../x", ["x"]), ("x", ["a/b"]), ("x", [""]), ("x", ["y", "y"]), ("x" * 300, [])):
                    answer = await self.claim(self.register(name, *nodes), watch=watch, then=lambda: True)
                    assert isinstance(answer, wire.Goodbye)
                    assert "name" in answer.why

        self.run(story)

    def test_the_second_agent_of_a_name_takes_over(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                first = self.agents.pop("node-1")
                self.join("node-1")
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-1", "0")), self.launch())
                await watch.for_(ev.Running, 1)
                with pytest.raises(Refused, match="another agent named node-1 took over"):
                    await asyncio.wait_for(first, 30)

        self.run(story)
