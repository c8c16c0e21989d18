"""The agents of other machines: they join, are cut off, come back, or are lost."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import secrets
import socket as sockets
import time
from typing import TYPE_CHECKING

import msgspec

from levada.backends.local import claims, files, folders, wire
from levada.backends.local.messages import RUNS, News, Sighting
from levada.backends.local.record import Stage
from levada.backends.local.remote import Known, RemoteHost
from levada.backends.protocol import Socket
from levada.core.cluster import Foreign, Node
from levada.core.events import ForeignAppeared, ForeignGone, NodesAdded, NodesChanged, NodesLost

if TYPE_CHECKING:
    from levada.backends.local.backend import LocalBackend
    from levada.backends.local.hosts import Host

_log = logging.getLogger(__name__)
AGENTS = "agents.json"
_BEAT_S = 2.0
_LOOPBACK = "127."


class Agents:
    """All machines but this one. One that is silent for *silence_s* is lost, with what ran there."""

    def __init__(self, backend: LocalBackend, silence_s: float) -> None:
        self._backend, self._silence_s = backend, silence_s
        #: How often they are told that the server is there.
        self.beat_s = min(_BEAT_S, silence_s / 4)
        self._session = secrets.token_hex(8)
        self._hosts: dict[str, RemoteHost] = {}
        self._beaten = 0.0

    def load(self) -> None:
        """Machines that had joined before a restart: until they are silent for too long, what ran there runs."""
        try:
            known = msgspec.json.decode(folders.read_file(self._backend.home / AGENTS), type=list[Known])
        except (OSError, msgspec.DecodeError):
            return
        for each in known:
            host = self._add(each)
            nodes = {node.name for node in each.nodes}
            for gang in self._backend.gangs.values():
                if gang.record.stage in (Stage.IDLE, Stage.STARTING):
                    continue
                for member in (*gang.record.members, *gang.record.leavers):
                    if member.node in nodes:
                        host.assume(Sighting(job=gang.record.job, name=member.name, state=RUNS))

    def _add(self, known: Known) -> RemoteHost:
        host = self._hosts[known.name] = self._backend.hosts[known.name] = RemoteHost(known)
        host.foreign = self._backend.foreign_on(known.nodes)
        return host

    def _save(self) -> None:
        known = [host.known for host in self._hosts.values() if not host.lost]
        try:
            files.write_json(self._backend.home / AGENTS, known)
        except OSError as trouble:
            _log.warning("after a restart nobody will know who had joined: %s", trouble)

    # --- a connection -----------------------------------------------------------------------------------------------

    async def serve(self, socket: Socket) -> None:
        """Speaks with an agent until one of both goes."""
        with contextlib.suppress(ConnectionError, msgspec.DecodeError):
            text = await socket.receive()
            if text is None:
                return
            register = wire.read_from_agent(text)
            if not isinstance(register, wire.Register):
                return
            if why := self._objection(register):
                await socket.send(wire.encode(wire.Goodbye(why=why)))
                await socket.close(why)
                return
            host = self._join(register)
            welcome = wire.Welcome(epoch=self._backend.epoch, session=self._session)
            await host.attach(socket, register.ports, welcome)
            try:
                await wire.converse(self._listen(host, socket), host.send_all(socket))
            except (ConnectionError, msgspec.DecodeError):
                raise
            except Exception:
                _log.exception("what %s says could not be taken in; it says all of it again", host.name)
            finally:
                host.detach(socket)

    def _objection(self, register: wire.Register) -> str:
        if register.version != wire.VERSION:
            spoken = f"{wire.VERSION} and {register.version}"
            return f"server and agent speak versions {spoken}: install the same Levada on both"
        if why := claims.fault_of_register(register):
            return why
        host = self._hosts.get(register.name)
        if host is not None and self._is_awaited(host) and host.known.id not in ("", register.id):
            return (
                f"another agent is called {register.name}, with a folder of its own: give this one another --name, "
                f"or start it again when that one has been away for {self._silence_s:.0f} s"
            )
        others = [host for host in self._backend.hosts.values() if host.name != register.name]
        taken = {node.name for host in others for node in host.nodes}
        double = sorted(taken & {node.name for node in register.nodes})
        return f"there is a node {double[0]} already: give this agent another --name" if double else ""

    def _is_awaited(self, host: RemoteHost) -> bool:
        """It is there, or not yet lost."""
        return not host.lost or time.monotonic() - host.heard <= self._silence_s

    def _join(self, register: wire.Register) -> RemoteHost:
        known = Known(
            name=register.name,
            address=register.address,
            home=register.home,
            nodes=register.nodes,
            checkpoints=register.checkpoints,
            mps_pipe=register.mps_pipe,
            id=register.id,
        )
        host = self._hosts.get(register.name)
        if host is not None and host.known.id not in ("", known.id):
            host = None  # another machine: what ran on the first was lost with it, and commands for it are not for this
        if host is None:
            host = self._add(known)
            host.lost = True  # until it has said what it sees
        elif host.nodes != known.nodes and not host.lost:
            self._backend.tell(NodesChanged(at=0.0, nodes=known.nodes))
        host.update(known)
        here, address = self._backend.here, register.server_address
        if here.address.startswith(_LOOPBACK) and not address.startswith(_LOOPBACK) and _is_of_this_machine(address):
            here.address = address  # where others find this machine
        return host

    async def _listen(self, host: RemoteHost, socket: Socket) -> None:
        # A connection that hung until another machine had its name says nothing any more.
        while (text := await socket.receive()) is not None and self._hosts.get(host.name) is host:
            message = wire.read_from_agent(text)
            host.hear(message)
            if isinstance(message, wire.Part):
                host.gather(self._check(host, message.news))
            elif isinstance(message, wire.Told):
                self._hear(host, message)
            elif isinstance(message, wire.Machine):
                self._look_at(host, message)

    def _hear(self, host: RemoteHost, told: wire.Told) -> None:
        backend = self._backend
        if told.all and host.lost:
            host.lost = False
            backend.tell(NodesAdded(at=0.0, nodes=host.nodes))
            _log.info("%s has joined", host.name)
        if told.all:
            self._save()
        backend.hear(host.learn(msgspec.structs.replace(told, news=self._check(host, told.news))))
        if told.all:
            for gang in backend.gangs.values():
                if host in backend.hosts_of(gang):
                    gang.publish_again()
        backend.flush()

    def _check(self, host: RemoteHost, news: News) -> News:
        """The part of *news* that the agent may report; it is told to stop workers it should not have."""
        gangs = self._backend.gangs
        nodes = {node.name for node in host.nodes}
        verdict = claims.check_news(news, nodes, lambda job: gangs[job].record if job in gangs else None)
        if verdict.rejected:
            host.reject(verdict.rejected)
        host.note_worlds(verdict.worlds)
        if verdict.strays:
            host.send_away(verdict.strays, self._backend.epoch)
        return verdict.news

    def newest_world(self, job: str) -> int:
        """The newest generation of workers that an agent has folders of, of a job without a record here."""
        return max((host.stray_worlds.get(job, 0) for host in self._hosts.values()), default=0)

    def _look_at(self, host: RemoteHost, machine: wire.Machine) -> None:
        names = {node.name for node in host.nodes}
        if {node.name for node in machine.nodes} != names or claims.fault_of_nodes(machine.nodes):
            host.reject(["nodes that belong to another machine, or cannot be"])
            return
        own = claims.own_foreign(machine.foreign, names)
        if len(own) < len(machine.foreign):
            host.reject(["foreign use of GPUs on other nodes"])
        host.known = msgspec.structs.replace(host.known, nodes=machine.nodes)
        tell_machine(self._backend, host, machine.nodes, own)

    # --- time -------------------------------------------------------------------------------------------------------

    def look_after(self) -> None:
        """Beats, and notices who is silent."""
        now = time.monotonic()
        since = now - self._beaten
        if since < self.beat_s:
            return
        # Who stood still itself (stopped, or on a machine that stalls) has heard nobody: that is not their silence.
        slept = max(0.0, since - 2 * self.beat_s) if self._beaten else 0.0
        self._beaten = now
        for host in self._hosts.values():
            host.beat()
            host.heard = min(now, host.heard + slept)
            if not host.lost and now - host.heard > self._silence_s:
                _log.warning("%s has been silent for %.0f s: its nodes are lost", host.name, self._silence_s)
                self._backend.tell(NodesLost(at=0.0, names=tuple(node.name for node in host.nodes)))
                self._backend.hear(host.lose())
                self._save()


def tell_machine(backend: LocalBackend, host: Host, nodes: tuple[Node, ...], foreign: tuple[Foreign, ...]) -> None:
    """Tells what is different about a machine: its GPUs, and what others use of them."""
    if nodes != host.nodes:
        host.nodes = nodes
        backend.tell(NodesChanged(at=0.0, nodes=nodes))
    known = {each.id: each for each in host.foreign}
    fresh = tuple(each for each in foreign if known.get(each.id) != each)
    gone = tuple(sorted(known.keys() - {each.id for each in foreign}))
    host.foreign = foreign
    if fresh:
        backend.tell(ForeignAppeared(at=0.0, foreign=fresh))
    if gone:
        backend.tell(ForeignGone(at=0.0, ids=gone))
    backend.flush()


def _is_of_this_machine(address: str) -> bool:
    """Whether *address* is one of this machine's own: an agent cannot send workers to another one."""
    try:
        family = sockets.AF_INET6 if ipaddress.ip_address(address).version == 6 else sockets.AF_INET
        with sockets.socket(family, sockets.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except (OSError, ValueError):
        return False
    return True
