"""Objects of the API with only the fields that the backend reads.

Other fields are skipped while decoding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from levada.backends.kubernetes import names


class _Fields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class OwnerReference(_Fields, frozen=True, kw_only=True):
    """An object that another one belongs to."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMetadata(_Fields, frozen=True, kw_only=True):
    """What all objects have."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def controller(self) -> OwnerReference | None:
        """The object that manages this one."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class AnyObject(_Fields, frozen=True, kw_only=True):
    """An object of any kind."""

    metadata: ObjectMetadata

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.metadata.namespace, self.metadata.name


Amounts = Mapping[str, str | int | float]


class Requirements(_Fields, frozen=True, kw_only=True):
    """Requested resources."""

    requests: Amounts = {}
    limits: Amounts = {}


class Container(_Fields, frozen=True, kw_only=True):
    """A container; an init container that restarts always is a sidecar."""

    name: str = ""
    resources: Requirements = Requirements()
    restart_policy: str = ""


class SchedulingGate(_Fields, frozen=True, kw_only=True):
    """A reason not to schedule a pod yet."""

    name: str


class PodSpec(_Fields, frozen=True, kw_only=True):
    """Where a pod is and what it requests."""

    node_name: str = ""
    node_selector: Mapping[str, str] = {}
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: Amounts = {}
    resources: Requirements = Requirements()


class Condition(_Fields, frozen=True, kw_only=True):
    """A condition of an object."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class Terminated(_Fields, frozen=True, kw_only=True):
    """How a container ended."""

    exit_code: int = 0


class Waiting(_Fields, frozen=True, kw_only=True):
    """Why a container does not run."""

    reason: str = ""


class ContainerState(_Fields, frozen=True, kw_only=True):
    """State of a container."""

    terminated: Terminated | None = None
    waiting: Waiting | None = None


class ContainerStatus(_Fields, frozen=True, kw_only=True):
    """Status of a container."""

    state: ContainerState = ContainerState()


class PodStatus(_Fields, frozen=True, kw_only=True):
    """What became of a pod."""

    phase: str = "Pending"
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    pod_i_p: str = msgspec.field(default="", name="podIP")


class PodObject(AnyObject, frozen=True, kw_only=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_gated(self) -> bool:
        """Whether it waits for Levada to name a node."""
        return any(gate.name == names.GATE for gate in self.spec.scheduling_gates)

    @property
    def node(self) -> str:
        """The node that it has or is pinned to; empty if it holds nothing."""
        if self.spec.node_name:
            return self.spec.node_name
        return "" if self.spec.scheduling_gates else self.spec.node_selector.get(names.HOSTNAME, "")

    @property
    def standing(self) -> tuple[object, ...]:
        """What decisions depend on; most changes of a pod, e.g. of its conditions, do not change it."""
        meta = self.metadata
        return meta.uid, self.node, self.spec.scheduling_gates, self.status.phase, self.is_leaving, meta.labels

    @property
    def is_over(self) -> bool:
        """Whether its containers have ended, so that it holds nothing."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def is_leaving(self) -> bool:
        """Whether it is being deleted."""
        return self.metadata.deletion_timestamp is not None

    @property
    def exit_code(self) -> int | None:
        """The first exit code that is not 0, else 0; None while no container has ended."""
        ended = [status.state.terminated for status in self.status.container_statuses]
        codes = [state.exit_code for state in ended if state is not None]
        return next((code for code in codes if code), 0) if codes else None

    def trouble(self) -> str:
        """Why it does not run, e.g. `Insufficient nvidia.com/gpu`; empty if unknown."""
        for condition in self.status.conditions:
            if condition.type == "PodScheduled" and condition.status == "False":
                short = re.search(r"Insufficient [\w./-]+", condition.message)
                return short[0] if short else condition.message or condition.reason
        waiting = [status.state.waiting for status in self.status.container_statuses]
        return next((state.reason for state in waiting if state is not None), "")


class Taint(_Fields, frozen=True, kw_only=True):
    """Keeps pods off a node unless they tolerate it."""

    key: str
    value: str = ""
    effect: str = ""


class NodeSpec(_Fields, frozen=True, kw_only=True):
    """What keeps pods off a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(_Fields, frozen=True, kw_only=True):
    """Resources and health of a node."""

    allocatable: Amounts = {}
    conditions: tuple[Condition, ...] = ()


class NodeObject(AnyObject, frozen=True, kw_only=True):
    """A node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> Condition:
        """Its condition Ready; Unknown if it has none yet."""
        found = (condition for condition in self.status.conditions if condition.type == "Ready")
        return next(found, Condition(type="Ready", status="Unknown"))


class JobObject(AnyObject, frozen=True, kw_only=True):
    """An object of a kind that Levada schedules, with its whole spec and status."""

    api_version: str = ""
    kind: str = ""
    spec: Mapping[str, Any] = {}
    status: Mapping[str, Any] | None = None

    @staticmethod
    def of(
        api_version: str, kind: str, spec: Mapping[str, Any], annotations: Mapping[str, str], uid: str = ""
    ) -> JobObject:
        """An object that does not exist yet, or no longer."""
        meta = ObjectMetadata(annotations=annotations, uid=uid)
        return JobObject(api_version=api_version, kind=kind, spec=spec, metadata=meta)

    @property
    def conditions(self) -> Mapping[str, str]:
        """Messages of the conditions that are true, by type."""
        listed = (self.status or {}).get("conditions") or ()
        return {each["type"]: each.get("message", "") for each in listed if each.get("status") == "True"}


class Pool(_Fields, frozen=True, kw_only=True):
    """A pool of devices; only slices of its newest generation count."""

    name: str = ""
    generation: int = 0


class SliceSpec(_Fields, frozen=True, kw_only=True):
    """Devices of a node."""

    driver: str = ""
    node_name: str = ""
    pool: Pool = Pool()
    devices: tuple[Mapping[str, Any], ...] = ()


class SliceObject(AnyObject, frozen=True, kw_only=True):
    """A ResourceSlice: devices that a DRA driver publishes."""

    spec: SliceSpec = SliceSpec()


class VolumeObject(AnyObject, frozen=True, kw_only=True):
    """A PersistentVolume or PersistentVolumeClaim."""

    spec: Mapping[str, Any] = {}


def unix_time(text: str) -> float:
    """Seconds since 1970 of a timestamp of the API; 0 if it has none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0
