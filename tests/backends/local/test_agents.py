"""Remote machines: the backend contract over agents, disconnects and reconnects."""

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

from levada.backends.local import agent_protocol
from levada.backends.local.agent import Agent, run_agent, socket_url
from levada.backends.local.backend import LocalBackend
from levada.backends.local.gpus import pretend_nodes
from levada.backends.local.processes import WorkerSpec
from levada.backends.local.remote import AgentRecord, RemoteHost
from levada.backends.local.supervisor_protocol import (
    ENDED,
    LOST,
    RUNS,
    CheckpointStatus,
    Forget,
    StartWorker,
    StatusUpdate,
    WorkerStatus,
)
from levada.backends.local.worker import Worker
from levada.backends.protocol import Launch
from levada.core import events as ev
from levada.core.cluster import Foreign
from levada.core.plan import OpKind
from levada.errors import BadInput, Refused
from tests.backends.contract import BackendContract, BackendWatch, op, place
from tests.backends.local.agent_network import MOST_MESSAGE, TOKEN, CuttableProxy, free_port, serve_agents
from tests.backends.local.test_backend import LocalTest
from tests.backends.local.test_elastic import SCRIPT
from tests.timeouts import WAIT_S


class AgentsTest(LocalTest):
    """Two agents with one node each, and a server without nodes. Agents outlive the server."""

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
        """Start the agent of a machine unless it runs."""
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
    ) -> AsyncIterator[BackendWatch]:
        backend = self.make()
        watch = BackendWatch(backend, await backend.open(epoch, foreign))
        try:
            async with asyncio.timeout(3 * WAIT_S), serve_agents(backend, "127.0.0.1", self.port):
                for name in ("node-0", "node-1"):
                    self.join(name)
                await watch.wait_until(lambda: self.connected(watch) == {"node-0", "node-1"}, "both agents")
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
    def connected(watch: BackendWatch) -> set[str]:
        """The names of connected machines."""
        backend = watch.backend
        assert isinstance(backend, LocalBackend)
        return {name for name, host in backend.hosts.items() if name and host.connected and not host.lost}


class TestAgentContract(AgentsTest, BackendContract):
    """The backend contract on remote machines."""

    async def test_an_older_epoch_is_rejected(self) -> None:
        async with self.opened(epoch=2, leave=True):
            pass
        old = LocalBackend(self.home.parent / "elsewhere", ())
        await old.open(1)
        try:
            async with serve_agents(old, "127.0.0.1", self.port):
                for _ in range(50):
                    await asyncio.sleep(0.02)
                    assert (await old.cluster()).nodes == ()
        finally:
            await old.close()
        async with self.opened(epoch=3):
            pass


class TestCutOff(AgentsTest):
    """The connection to one machine is cut or slow."""

    silence_s = 1.5

    def elastic(self) -> Launch:
        (self.work / "elastic.py").write_text(SCRIPT)
        command = (sys.executable, "-u", str(self.work / "elastic.py"), str(self.work))
        return Launch(command=command, workdir=str(self.work), grace_s=20.0, max_workers=8)

    @asynccontextmanager
    async def opened_with_proxy(self) -> AsyncIterator[tuple[BackendWatch, CuttableProxy]]:
        """node-1 is connected through a proxy."""
        async with CuttableProxy(self.port) as proxy:
            self.through = {"node-1": proxy.port}
            async with self.opened() as watch:
                yield watch, proxy

    async def test_a_short_disconnect_changes_nothing(self) -> None:
        async with self.opened_with_proxy() as (watch, proxy):
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-1", "0")), self.launch())
            await watch.wait_event(ev.Running, 1)
            pid = watch.backend.workers("toy-1")[0].pid
            proxy.cut()
            await asyncio.sleep(0.5)
            proxy.mend()
            self.write_control("go", "0")
            await watch.wait_event(ev.JobsFinished)
            assert not watch.events_of(ev.NodesLost)
            assert watch.backend.workers("toy-1")[0].pid == pid

    async def test_a_long_disconnect_loses_the_machine_and_its_workers_stop_on_return(self) -> None:
        async with self.opened_with_proxy() as (watch, proxy):
            launch = self.launch()
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-1", "0")), launch)
            await watch.wait_event(ev.Running, 1)
            await self.wait_scripts(watch, 1, 2)
            proxy.cut()
            lost = await watch.wait_event(ev.NodesLost)
            assert lost.names == ("node-1",)
            assert [node.name for node in (await watch.backend.cluster()).nodes] == ["node-0"]
            # The engine then stops the remaining worker and restarts the job on other nodes.
            await watch.backend.apply(op(OpKind.STOP, 2), None)
            await watch.wait_event(ev.Released, 2)
            await watch.backend.apply(op(OpKind.START, 3, place(0, "node-0", "0")), launch)
            await watch.wait_event(ev.Running, 3)
            left = int((self.work / "up-1-1").read_text())
            assert Path(f"/proc/{left}").exists(), "workers of a disconnected agent continue"
            proxy.mend()
            back = await watch.wait_event(ev.NodesAdded)
            assert [node.name for node in back.nodes] == ["node-1"]
            await watch.wait_until(lambda: not Path(f"/proc/{left}").exists(), "the end of the stray worker")
            assert [one.phase for one in watch.backend.workers("toy-1")] == ["Running"]
            assert not watch.events_of(ev.JobsFailed)

    async def test_a_start_not_received_by_a_lost_machine_is_not_executed_later(self) -> None:
        async with self.opened_with_proxy() as (watch, proxy):
            proxy.cut()
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-1", "0")), self.launch())
            await watch.wait_event(ev.NodesLost)
            # The engine then starts the job on another node.
            await watch.backend.apply(op(OpKind.STOP, 2), None)
            await watch.wait_event(ev.Released, 2)
            await watch.backend.apply(op(OpKind.START, 3, place(0, "node-0", "0")), self.launch())
            await watch.wait_event(ev.Running, 3)
            await self.wait_scripts(watch, 3, 1)
            proxy.mend()
            await watch.wait_event(ev.NodesAdded)
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-1", "1"), job="b", number=8), self.launch())
            await watch.wait_until(lambda: watch.backend.workers("b") and watch.backend.workers("b")[0].pid, "the next")
            assert not (self.home.parent / "state-node-1" / "jobs" / "toy-1" / "workers" / "g1-0").exists()

    async def test_a_new_machine_may_reuse_the_name_of_a_lost_one_without_its_work(self) -> None:
        async with self.opened_with_proxy() as (watch, proxy):
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-1", "0")), self.launch())
            await watch.wait_event(ev.Running, 1)
            await self.wait_scripts(watch, 1, 1)
            pid = int((self.work / "up-1-0").read_text())
            first = self.agents.pop("node-1")
            proxy.cut()
            await watch.wait_event(ev.NodesLost)
            # Commands for the first machine are under way when the second one joins.
            await watch.backend.apply(op(OpKind.STOP, 2), None)
            await watch.wait_event(ev.Released, 2)
            self.through = {}
            self.folders["node-1"] = self.home.parent / "another-machine"
            self.join("node-1")
            await watch.wait_event(ev.NodesAdded)
            assert [one.phase for one in watch.backend.workers("toy-1") if one.phase == "Running"] == []
            await watch.backend.apply(op(OpKind.START, 3, place(0, "node-1", "0")), self.launch())
            await watch.wait_event(ev.Running, 3)
            assert int((self.work / "up-3-0").read_text()) != pid
            proxy.mend()
            with pytest.raises(Refused, match="another agent is called node-1"):
                await asyncio.wait_for(first, WAIT_S)
            assert not self.agents["node-1"].done()
            os.kill(pid, signal.SIGKILL)

    async def test_survivors_of_a_lost_machine_continue(self) -> None:
        async with self.opened_with_proxy() as (watch, proxy):
            places = [place(0, "node-0", "0"), place(1, "node-1", "0"), place(2, "node-0", "1")]
            await watch.backend.apply(op(OpKind.START, 1, *places), self.elastic())
            await watch.wait_event(ev.ResizesInPlace, 1)
            proxy.cut()
            await self.lose("toy-1", 1)
            await watch.wait_event(ev.NodesLost)
            await watch.wait_until(lambda: not watch.backend.controllers["toy-1"].busy, "a generation of two workers")  # type: ignore[attr-defined]
            assert (await watch.backend.running())["toy-1"].running == 2
            assert not watch.events_of(ev.WorkersFailed), "the loss of the node says it all"
            assert not watch.events_of(ev.JobsFailed)
            proxy.mend()
            await watch.wait_event(ev.NodesAdded)
            self.write_control("end")
            await watch.wait_event(ev.JobsFinished)

    async def test_a_slow_connection_is_not_a_loss(self) -> None:
        async with self.opened_with_proxy() as (watch, proxy):
            proxy.delay_s = 0.3
            await watch.backend.apply(
                op(OpKind.START, 1, place(0, "node-1", "0"), place(1, "node-0", "1")), self.launch()
            )
            await watch.wait_event(ev.Running, 1)
            lines = [line.text async for line in watch.backend.logs("toy-1", worker="0")]
            assert lines == ["up 0 2 1"]
            await watch.backend.apply(op(OpKind.STOP, 2), None)
            await watch.wait_event(ev.Released, 2)
            assert not watch.events_of(ev.NodesLost)

    async def test_a_suspended_server_loses_no_machine(self) -> None:
        async with self.opened_with_proxy() as (watch, proxy):
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-1", "0")), self.launch())
            await watch.wait_event(ev.Running, 1)
            await self.wait_scripts(watch, 1, 1)
            time.sleep(3 * self.silence_s)  # blocks the event loop of server and agents
            await watch.backend.apply(op(OpKind.STOP, 2), None)
            await watch.wait_event(ev.Released, 2)
            assert not watch.events_of(ev.NodesLost)
            proxy.cut()
            await watch.wait_event(ev.NodesLost)
            proxy.mend()
            await watch.wait_event(ev.NodesAdded)

    async def test_a_machine_that_does_not_return_after_a_server_restart_is_lost(self) -> None:
        async with self.opened(1, leave=True) as first:
            await first.backend.apply(
                op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-1", "0")), self.launch()
            )
            await first.wait_event(ev.Running, 1)
            await self.wait_scripts(first, 1, 2)
        gone = self.agents["node-1"]
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        backend = self.make()
        watch = BackendWatch(backend, await backend.open(2))
        try:
            async with serve_agents(backend, "127.0.0.1", self.port):
                names = [node.name for node in (await backend.cluster()).nodes]
                assert names == ["node-0", "node-1"], "nodes are expected until they count as lost"
                assert (await backend.running())["toy-1"].running == 2
                lost = await watch.wait_event(ev.NodesLost)
                assert lost.names == ("node-1",)
                del self.agents["node-1"]
                self.join("node-1")
                await watch.wait_event(ev.NodesAdded)
                await self.stop_all(watch)
        finally:
            await watch.end()
            await backend.close()
            for agent in self.agents.values():
                agent.cancel()
            await asyncio.gather(*self.agents.values(), return_exceptions=True)


class TestCommands:
    """An agent with a scripted server that repeats commands."""

    async def test_commands_repeated_after_a_reconnect_are_not_executed_twice(self, tmp_path: Path) -> None:
        """Otherwise a worker of a removed job would run again."""
        ran = tmp_path / "ran"

        def start(number: int, name: str) -> agent_protocol.Execute:
            argv = ["sh", "-c", f"echo {name} >> {ran}"]
            spec = WorkerSpec(argv=argv, env={"PATH": os.environ["PATH"]}, cwd=str(tmp_path))
            command = StartWorker(job="toy-1", epoch=1, number=7, generation=1, name=name, spec=spec)
            return agent_protocol.Execute(number=number, command=command)

        first = start(1, "g1-0")
        forget = agent_protocol.Execute(number=2, command=Forget(job="toy-1", epoch=1))
        connections: list[list[agent_protocol.Execute]] = [[first, forget], [first, forget, start(3, "g2-0")]]
        done = asyncio.Event()

        async def handle(connection: ServerConnection) -> None:
            async def receive_until(condition: Callable[[agent_protocol.FromAgent], bool]) -> None:
                while not condition(agent_protocol.read_from_agent(str(await connection.recv(decode=True)))):
                    pass

            await receive_until(lambda message: isinstance(message, agent_protocol.Register))
            await connection.send(agent_protocol.encode(agent_protocol.AgentRegistered(epoch=1, session="one server")))
            for command in connections.pop(0):
                await connection.send(agent_protocol.encode(command))
                if isinstance(command.command, StartWorker) and command.number not in taken:
                    await receive_until(
                        lambda message: isinstance(message, agent_protocol.StatusMessage) and _has_ended(message)
                    )
                else:
                    await receive_until(lambda message: message == agent_protocol.Ack(number=command.number))  # noqa: B023  # awaited within the round
                taken.add(command.number)
            if not connections:
                done.set()

        taken: set[int] = set()

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


def _has_ended(message: agent_protocol.StatusMessage) -> bool:
    return any(status.state == ENDED for status in message.news.workers)


class TestInterruptedSession(AgentsTest):
    """An error ends one session; the next one starts with the full status."""

    @pytest.mark.parametrize("side", ["the agent", "the server"])
    async def test_an_interrupted_transfer_is_resumed(self, side: str, tmp_path: Path) -> None:
        backend = self.make()
        watch = BackendWatch(backend, await backend.open(1))
        nodes = pretend_nodes([{"gpu": 1}])
        agent = Agent(
            f"http://127.0.0.1:{self.port}", TOKEN, nodes=nodes, state=tmp_path / "x", name="x", silence_s=600.0
        )
        try:
            async with serve_agents(backend, "127.0.0.1", self.port):
                running = asyncio.create_task(agent.run())
                await watch.wait_until(lambda: self.connected(watch) == {"x"}, "the agent")
                if side == "the agent":
                    assert agent._outbox is not None
                    agent._outbox.put_nowait(object())  # type: ignore[arg-type]  # not a message
                else:
                    host = backend.hosts["x"]
                    assert isinstance(host, RemoteHost)
                    host._outbox.put_nowait(object())  # type: ignore[arg-type]  # not a message
                first = agent._outbox
                await watch.wait_until(lambda: agent._outbox not in (None, first), "the next session")
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await watch.wait_event(ev.Running, 1)
                await self.stop_all(watch)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        finally:
            await watch.end()
            await backend.close()


class TestManyPastWorkers(AgentsTest):
    """A machine with many ended workers."""

    async def test_an_agent_with_many_past_workers_can_rejoin(self, tmp_path: Path) -> None:
        """Its full status exceeds the message limit of the server; no running worker is lost."""

        backend = self.make()
        watch = BackendWatch(backend, await backend.open(1))
        nodes = pretend_nodes([{"gpu": 1}])
        agent = Agent(f"http://127.0.0.1:{self.port}", TOKEN, nodes=nodes, state=tmp_path / "x", name="x")
        running = asyncio.create_task(agent.run())
        try:
            async with serve_agents(backend, "127.0.0.1", self.port):
                await watch.wait_until(lambda: self.connected(watch) == {"x"}, "the agent")
                await backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await watch.wait_event(ev.Running, 1)
            await watch.wait_until(lambda: not self.connected(watch), "the agent is cut off")
            [job] = agent._supervisor.jobs.values()
            [(alive, worker)] = job.workers.items()
            past = [f"g0-{number}" for number in range(6000)]
            for name in past:
                seen = WorkerStatus(job=job.id, name=name, state=ENDED, code=0, why="ended long ago; " * 60)
                job.workers[name] = Worker(worker.folder, seen, lambda *_: None)
            backend.controllers[job.id].record.placed.update(dict.fromkeys(past, "node-0"))
            assert (
                len(agent_protocol.encode(agent_protocol.StatusMessage(news=agent._supervisor.full_status(), all=True)))
                > MOST_MESSAGE
            )
            async with serve_agents(backend, "127.0.0.1", self.port):
                await watch.wait_until(lambda: self.connected(watch) == {"x"}, "the agent again")
                known = backend.hosts["x"].workers(job.id)
                assert known[alive].state == RUNS
                assert {known[name].state for name in past} == {ENDED}
                await self.stop_all(watch)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await watch.end()
            await backend.close()

    def test_workers_missing_from_all_parts_are_lost(self) -> None:
        node = pretend_nodes([{"gpu": 1}])
        host = RemoteHost(AgentRecord(name="x", address="127.0.0.1", home="/nowhere", nodes=tuple(node)))
        reported, missing = (WorkerStatus(job=job, name="g1-0", state=RUNS) for job in ("reported", "missing"))
        host.assume(reported)
        host.assume(missing)
        rest = (WorkerStatus(job=f"old-{n}", name="g1-0", state=ENDED, why="x" * 1000) for n in range(3000))
        *parts, last = agent_protocol.full_status(
            StatusUpdate(workers=(reported, *rest), checkpoints=(CheckpointStatus(job="reported", saved_at=7),))
        )
        assert parts
        assert isinstance(last, agent_protocol.StatusMessage)
        assert last.all
        for part in parts:
            host.add_part(part.news)
            assert not host.connected
        news = host.apply(last)
        assert host.connected
        assert host.workers("reported")["g1-0"].state == RUNS
        assert host.workers("missing")["g1-0"].state == LOST
        assert len(news.workers) == 3002
        assert news.checkpoints == (CheckpointStatus(job="reported", saved_at=7),)


class TestJoining(AgentsTest):
    """Agents that the server accepts or rejects."""

    async def refused(self, **fields: object) -> str:
        """The error of an agent that is rejected."""
        options = {"nodes": pretend_nodes([{"gpu": 1}], prefix="x"), "name": "x", **fields}
        joining = run_agent(
            f"http://127.0.0.1:{self.port}", str(options.pop("token", TOKEN)), state=self.home.parent / "x", **options
        )  # type: ignore[arg-type]
        with pytest.raises(Refused) as refused:
            await asyncio.wait_for(joining, 30)
        return str(refused.value)

    async def test_an_agent_that_cannot_join_gets_the_reason(self) -> None:
        async with self.opened():
            assert "--token" in await self.refused(token="wrong")
            assert "node-0" in await self.refused(nodes=pretend_nodes([{"gpu": 1}]))
            assert "--name" in await self.refused(name="")

    def test_an_invalid_address_is_rejected(self) -> None:
        assert socket_url("https://host:1/levada/") == "wss://host:1/levada/api/v1/agents/connect"
        for bad in ("host:1", "ftp://host", "http://"):
            with pytest.raises(BadInput, match="is not a server URL"):
                socket_url(bad)

    async def test_a_second_machine_of_the_same_name_is_rejected(self) -> None:
        async with self.opened() as watch:
            node = [node for node in pretend_nodes([{"gpu": 4}, {"gpu": 4}]) if node.name == "node-1"]
            assert "another agent is called node-1" in await self.refused(name="node-1", nodes=node)
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-1", "0")), self.launch())
            await watch.wait_event(ev.Running, 1)
            assert not self.agents["node-1"].done()

    async def claim(
        self, *messages: object, then: Callable[[], bool], watch: BackendWatch
    ) -> agent_protocol.FromServer:
        """Send messages as an agent and wait for *then*; return the first response."""
        url, headers = socket_url(f"http://127.0.0.1:{self.port}"), {"Authorization": f"Bearer {TOKEN}"}
        async with connect(url, additional_headers=headers, proxy=None, close_timeout=1) as socket:
            for message in messages:
                await socket.send(json.dumps(message))
            await watch.wait_until(then, "the messages were handled")
            async with asyncio.timeout(WAIT_S):
                return agent_protocol.read_from_server(str(await socket.recv(decode=True)))

    def register(self, name: str, *nodes: str, **more: object) -> dict[str, object]:
        descriptions = [{"name": node, "devices": [{"id": "0", "type": "gpu"}]} for node in nodes]
        where = {"home": "/nowhere", "address": "127.0.0.1", "server_address": "127.0.0.1"}
        return {
            "type": "Register",
            "version": agent_protocol.VERSION,
            "name": name,
            "nodes": descriptions,
            **where,
            **more,
        }

    async def test_an_agent_reports_only_its_own_nodes(self) -> None:
        async with self.opened() as watch:
            before = {node.name: node for node in (await watch.backend.cluster()).nodes}
            heard_all = {"type": "StatusMessage", "news": {}, "all": True}
            ghost = {"job": "../../ghost", "number": 1, "generation": 3, "epoch": 0}
            seen = {"job": "../../ghost", "name": "g1-0", "state": "runs", "pid": 1}
            odd = {"job": "odd", "name": "../..", "state": "runs"}
            lies = {"type": "StatusMessage", "news": {"sightings": [seen, odd], "stood": [ghost]}}
            stolen = {"type": "MachineReport", "nodes": [{"name": "node-0"}], "foreign": []}
            larger = [{"name": "x-0", "devices": [{"id": "0", "type": "gpu"}, {"id": "1", "type": "gpu"}]}]
            good = {"id": "x-0/0/7", "node": "x-0", "devices": ["0"], "milli": 1000}
            foreign = [good, {**good, "id": "node-0/0/1", "node": "node-0"}, {**good, "id": "reservation:x-0"}]
            own = {"type": "MachineReport", "nodes": larger, "foreign": [*foreign, {**good, "milli": -5}]}
            await self.claim(
                self.register("x", "x-0"),
                heard_all,
                stolen,
                lies,
                own,
                watch=watch,
                then=lambda: bool(watch.events_of(ev.ForeignAppeared)),
            )
            changed = [node for event in watch.events_of(ev.NodesChanged) for node in event.nodes]
            assert [(node.name, len(node.devices)) for node in changed] == [("x-0", 2)]
            appeared = [foreign.id for event in watch.events_of(ev.ForeignAppeared) for foreign in event.foreign]
            assert appeared == ["x-0/0/7"]
            after = {node.name: node for node in (await watch.backend.cluster()).nodes}
            assert {name: after[name] for name in before} == before
            assert "../../ghost" not in watch.backend.controllers  # type: ignore[attr-defined]  # of LocalBackend
            assert "odd" not in watch.backend.controllers  # type: ignore[attr-defined]  # of LocalBackend
            assert not (self.home.parent / "ghost").exists()

    async def test_foreign_use_from_before_a_restart_is_cleared_by_the_agent(self) -> None:
        used = Foreign(id="x-0/0/7", node="x-0", devices=("0",), milli=1000)

        async with self.opened(foreign=(used,)) as watch:
            assert not watch.events_of(ev.ForeignGone), "its agent has not joined"
            nodes = [{"name": "x-0", "devices": [{"id": "0", "type": "gpu"}]}]
            await self.claim(
                self.register("x", "x-0"),
                {"type": "StatusMessage", "news": {}, "all": True},
                {"type": "MachineReport", "nodes": nodes, "foreign": []},
                watch=watch,
                then=lambda: bool(watch.events_of(ev.ForeignGone)),
            )
            assert [event.ids for event in watch.events_of(ev.ForeignGone)] == [("x-0/0/7",)]

    async def test_invalid_names_are_rejected(self) -> None:
        async with self.opened() as watch:
            for name, nodes in (("../x", ["x"]), ("x", ["a/b"]), ("x", [""]), ("x", ["y", "y"]), ("x" * 300, [])):
                answer = await self.claim(self.register(name, *nodes), watch=watch, then=lambda: True)
                assert isinstance(answer, agent_protocol.AgentRejected)
                assert "name" in answer.why

    async def test_a_second_agent_of_the_same_machine_takes_over(self) -> None:
        async with self.opened() as watch:
            first = self.agents.pop("node-1")
            self.join("node-1")
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-1", "0")), self.launch())
            await watch.wait_event(ev.Running, 1)
            with pytest.raises(Refused, match="another agent named node-1 took over"):
                await asyncio.wait_for(first, 30)
