"""Two machines in separate network namespaces, connected by a bridge."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from levada.backends.local.backend import LocalBackend
from levada.backends.protocol import Launch
from levada.core import events as ev
from levada.core.plan import OpKind
from tests.backends.contract import BackendWatch, op, place
from tests.backends.local.agent_network import TOKEN, free_port, serve_agents
from tests.backends.local.test_backend import LocalTest
from tests.backends.local.test_elastic import SCRIPT
from tests.timeouts import WAIT_S

AGENT = """
import asyncio, pathlib, sys
from levada.backends.local.agent import run_agent
from levada.core.cluster import Node
url, name, home = sys.argv[1:]
node = Node.of(name, {'gpu': 4})
asyncio.run(run_agent(url, 'of-an-operator', nodes=[node], state=pathlib.Path(home, name), name=name,
                      checkpoints=pathlib.Path(home, 'saves'), silence_s=4.0))
"""
assert TOKEN in AGENT


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)


class NamespaceNetwork:
    """A bridge and the network namespaces connected to it."""

    def __init__(self) -> None:
        self._mark = f"lv{os.getpid() % 100000}"
        self._prefix = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self.address = f"{self._prefix}.1"
        self._names: list[str] = []
        _run("ip", "link", "add", f"{self._mark}b", "type", "bridge")
        _run("ip", "addr", "add", f"{self.address}/24", "dev", f"{self._mark}b")
        _run("ip", "link", "set", f"{self._mark}b", "up")

    def add(self, at: int) -> str:
        """Add a machine; return the name of its namespace."""
        name, outer, inner = f"{self._mark}n{at}", f"{self._mark}o{at}", f"{self._mark}i{at}"
        _run("ip", "netns", "add", name)
        self._names.append(name)
        _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
        _run("ip", "link", "set", inner, "netns", name)
        _run("ip", "link", "set", outer, "master", f"{self._mark}b")
        _run("ip", "link", "set", outer, "up")
        for link in (inner, "lo"):
            _run("ip", "-n", name, "link", "set", link, "up")
        _run("ip", "-n", name, "addr", "add", f"{self._prefix}.{2 + at}/24", "dev", inner)
        return name

    def link(self, at: int, state: str) -> None:
        """Disconnect a machine, or connect it again."""
        _run("ip", "link", "set", f"{self._mark}o{at}", state)

    def close(self) -> None:
        """Remove all namespaces and the bridge."""
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self._mark}b"], check=False, capture_output=True)


def _why_not() -> str:
    """Why namespaces cannot be created here; empty if they can."""
    if shutil.which("ip") is None:
        return "there is no `ip` command"
    probe = f"lvp{os.getpid()}"
    result = subprocess.run(["ip", "netns", "add", probe], check=False, capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", probe], check=False, capture_output=True)
    return result.stderr.strip()


@pytest.fixture
def net() -> Iterator[NamespaceNetwork]:
    why = _why_not()
    if why:
        if os.environ.get("CI") == "true":
            pytest.fail(f"network namespaces are needed: {why}")
        pytest.skip(f"no network namespaces: {why}")
    network = NamespaceNetwork()
    try:
        yield network
    finally:
        network.close()


class TestNamespaces(LocalTest):
    """A server without nodes, and two machines."""

    @asynccontextmanager
    async def joined(self, net: NamespaceNetwork) -> AsyncIterator[BackendWatch]:
        backend = LocalBackend(self.home, (), checkpoints=self.home.parent / "saves", silence_s=4.0)
        watch = BackendWatch(backend, await backend.open(1))
        port = free_port()
        agents = []
        try:
            async with asyncio.timeout(3 * WAIT_S), serve_agents(backend, net.address, port):
                for at in range(2):
                    inside = ["ip", "netns", "exec", net.add(at)]
                    url = f"http://{net.address}:{port}"
                    command = [*inside, sys.executable, "-c", AGENT, url, f"node-{at}", str(self.home.parent)]
                    agents.append(subprocess.Popen(command))
                await watch.wait_until(lambda: len(watch.events_of(ev.NodesAdded)) == 2, "both agents")
                yield watch
                await self.stop_all(watch)
        finally:
            await watch.end()
            await backend.close()
            for agent in agents:
                agent.terminate()
                agent.wait(10)

    def elastic(self) -> Launch:
        (self.work / "elastic.py").write_text(SCRIPT)
        command = (sys.executable, "-u", str(self.work / "elastic.py"), str(self.work))
        return Launch(command=command, workdir=str(self.work), grace_s=20.0, max_workers=8)

    async def test_workers_on_two_machines_find_each_other(self, net: NamespaceNetwork) -> None:
        async with self.joined(net) as watch:
            launch = self.elastic()
            places = [place(0, "node-0", "0"), place(1, "node-1", "0")]
            await watch.backend.apply(op(OpKind.START, 1, *places), launch)
            await watch.wait_event(ev.ResizesInPlace, 1)
            await watch.backend.apply(op(OpKind.RESIZE, 2, *places, place(2, "node-1", "1")), launch)
            await watch.wait_event(ev.Running, 2)
            lines = [line.text async for line in watch.backend.logs("toy-1")]
            ranks = {int(line.split()[2]) for line in lines if line.startswith("trains 2 ")}
            assert ranks == {0, 1, 2}
            self.write_control("end")
            await watch.wait_event(ev.JobsFinished)

    async def test_workers_on_a_disconnected_machine_are_stopped_when_it_returns(self, net: NamespaceNetwork) -> None:
        async with self.joined(net) as watch:
            launch = self.launch()
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-1", "0")), launch)
            await watch.wait_event(ev.Running, 1)
            await self.wait_scripts(watch, 1, 1)
            worker = Path(f"/proc/{(self.work / 'up-1-0').read_text()}")
            net.link(1, "down")
            lost = await watch.wait_event(ev.NodesLost)
            assert lost.names == ("node-1",)
            await watch.backend.apply(op(OpKind.STOP, 2), None)
            await watch.wait_event(ev.Released, 2)
            await watch.backend.apply(op(OpKind.START, 3, place(0, "node-0", "0")), launch)
            await watch.wait_event(ev.Running, 3)
            assert worker.exists(), "it knows nothing of all this"
            net.link(1, "up")
            await watch.wait_until(lambda: len(watch.events_of(ev.NodesAdded)) == 3, "its return")
            await watch.wait_until(lambda: not worker.exists(), "the end of what is out of date")
            assert (await watch.backend.running())["toy-1"].running == 1

    @pytest.mark.slow
    async def test_survivors_continue_when_a_machine_vanishes(self, net: NamespaceNetwork) -> None:
        """No connection is closed: workers detect the loss by a timeout of 25 s."""

        async with self.joined(net) as watch:
            places = [place(0, "node-0", "0"), place(1, "node-1", "0"), place(2, "node-0", "1")]
            await watch.backend.apply(op(OpKind.START, 1, *places), self.elastic())
            await watch.wait_event(ev.ResizesInPlace, 1)
            net.link(1, "down")
            await watch.wait_event(ev.NodesLost)
            await watch.wait_until(lambda: not watch.backend.controllers["toy-1"].busy, "a generation of two workers")  # type: ignore[attr-defined]
            assert (await watch.backend.running())["toy-1"].running == 2
            assert not [note for note in watch.notes if note.type == "restart"], "no worker was restarted"
            net.link(1, "up")
            await watch.wait_until(lambda: len(watch.events_of(ev.NodesAdded)) == 3, "its return")
