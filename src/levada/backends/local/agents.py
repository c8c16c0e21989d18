"""Agents of remote machines: registration, reconnects and loss by silence."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import secrets
import socket as sockets
import time
from typing import TYPE_CHECKING

import msgspec

from levada.backends.local import agent_protocol, agent_validation, safe_fs, worker_files
from levada.backends.local.job_state import Stage
from levada.backends.local.remote import AgentRecord, RemoteHost
from levada.backends.local.supervisor_protocol import RUNS, StatusUpdate, WorkerStatus
from levada.backends.protocol import Socket
from levada.core.cluster import Foreign, Node
from levada.core.events import ForeignAppeared, ForeignGone, NodesAdded, NodesChanged, NodesLost

if TYPE_CHECKING:
    from levada.backends.local.backend import LocalBackend
    from levada.backends.local.machines import MachineLink

_log = logging.getLogger(__name__)
AGENTS = "agents.json"
_HEARTBEAT_S = 2.0
_LOOPBACK = "127."


class Agents:
    """All remote machines. One that is silent for *silence_s* is lost with its workers."""

    def __init__(self, backend: LocalBackend, silence_s: float) -> None:
        self._backend, self._silence_s = backend, silence_s
        #: Period of the server's heartbeats.
        self.heartbeat_s = min(_HEARTBEAT_S, silence_s / 4)
        self._session = secrets.token_hex(8)
        self._hosts: dict[str, RemoteHost] = {}
        self._last_heartbeat = 0.0

    def load(self) -> None:
        """Load machines that had joined before a restart; their workers count as running until they are lost."""
        try:
            known = msgspec.json.decode(safe_fs.read_file(self._backend.home / AGENTS), type=list[AgentRecord])
        except (OSError, msgspec.DecodeError):
            return
        for machine in known:
            host = self._add(machine)
            nodes = {node.name for node in machine.nodes}
            for controller in self._backend.controllers.values():
                if controller.record.stage in (Stage.IDLE, Stage.STARTING):
                    continue
                for member in (*controller.record.members, *controller.record.leavers):
                    if member.node in nodes:
                        host.assume(WorkerStatus(job=controller.record.job, name=member.name, state=RUNS))

    def _add(self, known: AgentRecord) -> RemoteHost:
        host = self._hosts[known.name] = self._backend.hosts[known.name] = RemoteHost(known)
        host.foreign = self._backend.foreign_on(known.nodes)
        return host

    def _save(self) -> None:
        known = [host.known for host in self._hosts.values() if not host.lost]
        try:
            worker_files.write_json(self._backend.home / AGENTS, known)
        except OSError as error:
            _log.warning("saving the list of agents failed; a restarted server will not know them: %s", error)

    # --- connection -------------------------------------------------------------------------------------------------

    async def serve(self, socket: Socket) -> None:
        """Serve the connection of an agent until either side closes it."""
        with contextlib.suppress(ConnectionError, msgspec.DecodeError):
            text = await socket.receive()
            if text is None:
                return
            register = agent_protocol.read_from_agent(text)
            if not isinstance(register, agent_protocol.Register):
                return
            if why := self._objection(register):
                await socket.send(agent_protocol.encode(agent_protocol.AgentRejected(why=why)))
                await socket.close(why)
                return
            host = self._join(register)
            registered = agent_protocol.AgentRegistered(epoch=self._backend.epoch, session=self._session)
            await host.attach(socket, register.ports, registered)
            try:
                await agent_protocol.run_until_first(self._listen(host, socket), host.send_all(socket))
            except (ConnectionError, msgspec.DecodeError):
                raise
            except Exception:
                _log.exception("closing connection of agent %s after an error: it will reconnect", host.name)
            finally:
                host.detach(socket)

    def _objection(self, register: agent_protocol.Register) -> str:
        """Why an agent cannot join; empty if it can."""
        if register.version != agent_protocol.VERSION:
            versions = f"server {agent_protocol.VERSION}, agent {register.version}"
            return f"incompatible agent protocol ({versions}): install the same version of Levada on both"
        if why := agent_validation.registration_error(register):
            return why
        host = self._hosts.get(register.name)
        if host is not None and self._may_return(host) and host.known.id not in ("", register.id):
            return (
                f"another agent is called {register.name} and has another state directory: give this one another "
                f"--name, or start it again when that one has been silent for {self._silence_s:.0f} s"
            )
        others = [host for host in self._backend.hosts.values() if host.name != register.name]
        taken = {node.name for host in others for node in host.nodes}
        taken_names = sorted(taken & {node.name for node in register.nodes})
        return f"node {taken_names[0]} already exists: give this agent another --name" if taken_names else ""

    def _may_return(self, host: RemoteHost) -> bool:
        """Whether a machine is connected, or silent for less than the limit."""
        return not host.lost or time.monotonic() - host.last_message <= self._silence_s

    def _join(self, register: agent_protocol.Register) -> RemoteHost:
        known = AgentRecord(
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
            host = None  # another machine of the same name: workers and commands of the first one are not its own
        if host is None:
            host = self._add(known)
            host.lost = True  # until it has sent its full status
        elif host.nodes != known.nodes and not host.lost:
            self._backend.emit(NodesChanged(at=0.0, nodes=known.nodes))
        host.update(known)
        here, address = self._backend.here, register.server_address
        if here.address.startswith(_LOOPBACK) and not address.startswith(_LOOPBACK) and _is_of_this_machine(address):
            here.address = address  # at which other machines reach this one
        return host

    async def _listen(self, host: RemoteHost, socket: Socket) -> None:
        # Messages of a connection that hung until another machine took its name are ignored.
        while (text := await socket.receive()) is not None and self._hosts.get(host.name) is host:
            message = agent_protocol.read_from_agent(text)
            host.receive(message)
            if isinstance(message, agent_protocol.StatusPart):
                host.add_part(self._check(host, message.news))
            elif isinstance(message, agent_protocol.StatusMessage):
                self._apply_status(host, message)
            elif isinstance(message, agent_protocol.MachineReport):
                self._apply_machine(host, message)

    def _apply_status(self, host: RemoteHost, message: agent_protocol.StatusMessage) -> None:
        backend = self._backend
        if message.all and host.lost:
            host.lost = False
            backend.emit(NodesAdded(at=0.0, nodes=host.nodes))
            _log.info("agent %s joined", host.name)
        if message.all:
            self._save()
        backend.observe(host.apply(msgspec.structs.replace(message, news=self._check(host, message.news))))
        if message.all:
            for controller in backend.controllers.values():
                if host in backend.hosts_of(controller):
                    controller.reports.republish()
        backend.flush()

    def _check(self, host: RemoteHost, update: StatusUpdate) -> StatusUpdate:
        """The part of *update* that the agent may report; stops workers that it should not run."""
        nodes = {node.name for node in host.nodes}
        checked = agent_validation.validate(update, nodes, self._backend.record_of)
        if checked.rejected:
            host.reject(checked.rejected)
        host.note_worlds(checked.worlds)
        if checked.strays:
            host.stop_strays(checked.strays, self._backend.epoch)
        return checked.news

    def newest_world(self, job: str) -> int:
        """The newest generation of workers of a job without a record for which an agent has a folder."""
        return max((host.stray_worlds.get(job, 0) for host in self._hosts.values()), default=0)

    def _apply_machine(self, host: RemoteHost, machine: agent_protocol.MachineReport) -> None:
        names = {node.name for node in host.nodes}
        if {node.name for node in machine.nodes} != names or agent_validation.nodes_error(machine.nodes):
            host.reject(["nodes that are invalid or belong to another machine"])
            return
        own = agent_validation.own_foreign(machine.foreign, names)
        if len(own) < len(machine.foreign):
            host.reject(["foreign use of GPUs on other nodes"])
        host.known = msgspec.structs.replace(host.known, nodes=machine.nodes)
        report_machine(self._backend, host, machine.nodes, own)

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Send heartbeats and mark silent machines as lost."""
        now = time.monotonic()
        since = now - self._last_heartbeat
        if since < self.heartbeat_s:
            return
        # Time in which this process stood still (stopped, or a stalled machine) is no silence of the agents.
        slept = max(0.0, since - 2 * self.heartbeat_s) if self._last_heartbeat else 0.0
        self._last_heartbeat = now
        for host in self._hosts.values():
            host.send_heartbeat()
            host.last_message = min(now, host.last_message + slept)
            if not host.lost and now - host.last_message > self._silence_s:
                _log.warning("marking nodes of agent %s lost: silent for %.0f s", host.name, self._silence_s)
                self._backend.emit(NodesLost(at=0.0, names=tuple(node.name for node in host.nodes)))
                self._backend.observe(host.mark_lost())
                self._save()


def report_machine(
    backend: LocalBackend, host: MachineLink, nodes: tuple[Node, ...], foreign: tuple[Foreign, ...]
) -> None:
    """Report changes of a machine to the engine: its GPUs and their foreign use."""
    if nodes != host.nodes:
        host.nodes = nodes
        backend.emit(NodesChanged(at=0.0, nodes=nodes))
    known = {use.id: use for use in host.foreign}
    changed = tuple(use for use in foreign if known.get(use.id) != use)
    gone = tuple(sorted(known.keys() - {use.id for use in foreign}))
    host.foreign = foreign
    if changed:
        backend.emit(ForeignAppeared(at=0.0, foreign=changed))
    if gone:
        backend.emit(ForeignGone(at=0.0, ids=gone))
    backend.flush()


def _is_of_this_machine(address: str) -> bool:
    """Whether *address* is one of this machine's own: an agent must not redirect workers to another machine."""
    try:
        family = sockets.AF_INET6 if ipaddress.ip_address(address).version == 6 else sockets.AF_INET
        with sockets.socket(family, sockets.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except (OSError, ValueError):
        return False
    return True
