"""A DRAGON case as columns, as far as the policy would have seen it.

The original overlooks limits, holders of shared devices, SharePods in plain mode, and devices of processes that are not
live yet. For `dragon-compat` these are left out here, so that the policy itself needs no special cases.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from levada.allocate.dragon_case import (
    CasePod,
    DragonCase,
    GpuReading,
    Needed,
    Pending,
    PodPlace,
    RunningPod,
    ServingPod,
    Unreadable,
    counts_as_share,
)
from levada.core.assignment import NO_DEVICE, server_index
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Device, Foreign, Node
from levada.core.job import Job, ParameterServers, Phase
from levada.core.reasons import Code
from levada.core.types import CPU_TYPE, WHOLE
from levada.errors import BadInput, Fault
from levada.tables.cluster_state import ClusterState

GPU = "gpu"
_CLOSES = {True: {"NoSchedule"}, False: {"NoSchedule", "NoExecute"}}


class DragonWorld:
    """The cluster state of a case, and the names of its devices."""

    def __init__(self, case: DragonCase, *, as_original: bool) -> None:
        self.case = case
        self.reading = GpuReading(case.mode, as_original)
        #: Invalid jobs and pods, and why; they do not affect the others.
        self.refused: dict[str, str] = {}
        #: Names of shared devices by number.
        self.gpuid: dict[int, str] = {}
        self._device_of: dict[tuple[int, str], int] = {}
        self._needed = self._running_needs()
        known = {node.name for node in case.nodes}
        places = [place for job in case.running for place in (*job.placement.ps, *job.placement.worker)]
        self.missing = list(dict.fromkeys(place.node for place in places if place.node not in known))
        self.world = ClusterState(Cluster(nodes=tuple(self._nodes())))
        inventory = self.world.inventory
        real = {node.name: node.gpus for node in case.nodes}
        self._free: list[list[int]] = []
        self._phantom: list[list[int]] = []
        for node, name in enumerate(inventory.nodes):
            devices = inventory.devices_of(node).tolist()
            self._free.append(devices[: real.get(name)])
            self._phantom.append(devices[len(self._free[node]) :])
        if case.mode == "kubeshare":
            self._put_pods()
        for job in case.running:
            self._put_running(job)
        if case.mode == "nvidia":
            self._put_pods()
        self._put_shares()
        self._put_holders()
        self._put_serving()
        for name in self.missing:
            inventory.set_lost(inventory.nodes.find(name))
        self.world.held = self.world.target.copy()
        for waiting in case.pending:
            self._put_pending(waiting)

    # --- nodes --------------------------------------------------------------------------------------------------

    def _nodes(self) -> list[Node]:
        extra = self._phantoms()
        closes = _CLOSES[self.reading.as_original]
        nodes = []
        for node in self.case.nodes:
            memory = (node.gpu_mem_mib or 0) << 20  # bytes, like gpu_mem, to avoid rounding
            devices = tuple(Device(id=str(i), type=GPU, memory=memory) for i in range(node.gpus + extra[node.name]))
            cordoned = not closes.isdisjoint(node.taints)
            nodes.append(Node(name=node.name, devices=devices, cpu=node.cpu, memory=node.mem, cordoned=cordoned))
        for name in self.missing:
            nodes.append(Node.of(name, {GPU: extra[name]}))
        return nodes

    def _phantoms(self) -> dict[str, int]:
        """Per node the number of extra devices for processes that hold none.

        On a missing node all devices are extra. The original also releases whole devices of workers that are not live
        yet.
        """
        extra = dict.fromkeys([*(node.name for node in self.case.nodes), *self.missing], 0)
        for job in self.case.running:
            milli = self._needed[job.name].milli
            for place in job.placement.worker:
                planned = not place.live and self.reading.as_original and self.case.mode == "nvidia"
                if planned or place.node in self.missing:
                    extra[place.node] += max(milli // WHOLE, 1 if milli else 0)
        return extra

    def _take_device(self, node: int) -> int:
        return self._free[node].pop(0) if self._free[node] else NO_DEVICE

    def _take_shared(self, node: int, gpuid: str | None) -> int:
        """The device of that name, a free one if the name is new, or NO_DEVICE."""
        if gpuid is None:
            return self._take_device(node)
        if (node, gpuid) not in self._device_of:
            device = self._take_device(node)
            if device == NO_DEVICE:
                return NO_DEVICE
            self._device_of[node, gpuid] = device
            self.gpuid[device] = gpuid
        return self._device_of[node, gpuid]

    # --- training jobs ------------------------------------------------------------------------------------------

    def _running_needs(self) -> Mapping[str, Needed]:
        needed, faults = {}, []
        for i, job in enumerate(self.case.running):
            try:
                needed[job.name] = self.reading.demand(job.worker)
            except Unreadable as error:
                faults.append(Fault(f"running[{i}].worker", str(error)))
        if faults:
            raise BadInput(faults)
        return needed

    def _add(self, job: RunningPod | Pending, submitted: float, least: int, most: int) -> int:
        """Add a job; its slot. The requested size may exceed the maximum."""
        need = self.reading.demand(job.worker)
        servers = None
        if job.ps is not None:
            one = self.reading.demand(job.ps)
            servers = ParameterServers(replicas=job.ps.replicas, cpu=one.cpu, memory=one.memory)
        value = Job(
            id=job.name,
            submitted=submitted,
            min=least,
            max=most,
            milli=need.milli,
            gpu_memory=need.gpu_memory,
            cpu=need.cpu,
            memory=need.memory,
            gpu_types=(GPU,) if need.milli else (),
            servers=servers,
        )
        slot = int(self.world.add_jobs(JobBatch.of([value]))[0])
        self.world.table.desired[slot] = job.worker.replicas
        return slot

    def _put_running(self, job: RunningPod) -> None:
        world, table = self.world, self.world.table
        # Before all pending jobs, in the order of the case.
        slot = self._add(job, self.case.now - 1e9 + len(world.ids), job.min, job.max)
        rows: list[tuple[int, int, int, int, int, int]] = []
        for replica, place in enumerate(job.placement.ps):
            rows.append((slot, server_index(replica), self._node(place), NO_DEVICE, 0, 0))
            self._correct(job, place, is_worker=False)
        following = 1
        for place in job.placement.worker:
            # Worker 0 is never stopped, so the chief gets this index.
            index = 0 if place.critical and not any(row[1] == 0 for row in rows) else following
            following += index > 0
            rows += self._worker_rows(job, place, slot, index)
            self._correct(job, place, is_worker=True)
        if rows:
            world.put_workers(world.target, slot, np.array(rows, np.int64).T)
        kind = world.inventory.types.find(GPU) if table.milli[slot] else CPU_TYPE
        table.type[slot] = table.held_type[slot] = kind
        table.count[slot] = table.held[slot] = table.observed[slot] = len(job.placement.worker)
        table.phase[slot], table.reason[slot] = Phase.RUNNING, Code.RUNS

    def _node(self, place: PodPlace) -> int:
        return self.world.inventory.nodes.find(place.node)

    def _worker_rows(
        self, job: RunningPod, place: PodPlace, slot: int, index: int
    ) -> list[tuple[int, int, int, int, int, int]]:
        need, node = self._needed[job.name], self._node(place)
        if not need.milli:
            return [(slot, index, node, NO_DEVICE, 0, 0)]
        if self.case.mode == "kubeshare":
            counted = not self.reading.as_original or (place.live and counts_as_share(job.worker, place.gpuid))
            device = self._take_shared(node, place.gpuid) if counted else NO_DEVICE
            # A fraction on an unknown device releases nothing when it leaves.
            milli = need.milli if device >= 0 else need.milli % WHOLE or 1
            return [(slot, index, node, device, milli, need.gpu_memory if milli < WHOLE else 0)]
        if not place.live and self.reading.as_original:
            devices = [self._phantom[node].pop() for _ in range(need.milli // WHOLE)]
        else:
            devices = [self._take_device(node) for _ in range(need.milli // WHOLE)]
        if NO_DEVICE in devices:
            self._free[node] = sorted([*self._free[node], *(device for device in devices if device >= 0)])
            return [(slot, index, node, NO_DEVICE, 0, 0)]
        return [(slot, index, node, device, WHOLE, 0) for device in devices]

    def _correct(self, job: RunningPod, place: PodPlace, *, is_worker: bool) -> None:
        """Account for actual instead of assumed use, for the original only.

        When the process leaves, the original releases the assumed use.
        """
        if not self.reading.as_original:
            return
        group = job.worker if is_worker else job.ps
        assumed = self.reading.demand(group) if group else Needed(0, 0)
        actual = self.reading.live(group) if group and place.live else Needed(0, 0)
        inventory, node = self.world.inventory, self._node(place)
        inventory.foreign_cpu[node] += actual.cpu - assumed.cpu
        inventory.foreign_memory[node] += actual.memory - assumed.memory
        inventory.changed()

    def _put_pending(self, job: Pending) -> None:
        fault = self._fault(job)
        if fault:
            self.refused[job.name] = fault
            return
        self._add(job, self.case.now - job.waited, job.min or 0, job.max or 0)

    def _fault(self, job: Pending) -> str:
        """Why a pending job is invalid by itself; empty if it is valid."""
        try:
            need = self.reading.demand(job.worker)
        except Unreadable as error:
            return f"Invalid: {error}."
        if job.min is None or job.max is None:
            return "Invalid: min and max are required."
        if self.reading.as_original:
            return ""
        if job.min > job.max:
            return f"Invalid: min ({job.min}) is above max ({job.max})."
        if job.min > job.worker.replicas:
            return f"Invalid: min ({job.min}) is above worker.replicas ({job.worker.replicas})."
        if job.min < 1:
            return "Invalid: min must be at least 1."
        largest = max(((node.gpu_mem_mib or 0) << 20 or need.gpu_memory for node in self.case.nodes), default=0)
        if need.milli == WHOLE and need.gpu_memory > largest:
            return f"Can never start: needs {need.gpu_memory >> 20} MiB of GPU memory, at most {largest >> 20} per GPU."
        return ""

    # --- other pods ---------------------------------------------------------------------------------------------

    def _put_pods(self) -> None:
        for i, pod in enumerate(self.case.other_pods):
            node = self.world.inventory.nodes.find(pod.node)
            if node < 0 or pod.node in self.missing or pod.is_over or pod.kubeshare_internal:
                continue
            devices = [d for d in (self._take_device(node) for _ in range(pod.gpu)) if d >= 0]
            need = GpuReading("nvidia", as_original=False).demand(pod)
            self._use(node, need, devices)
            if not self.reading.as_original and (pod.terminating or self._is_former_worker(pod)):
                self._leaves(f"other_pods[{i}]", pod, need, devices)

    def _is_former_worker(self, pod: CasePod) -> bool:
        """Whether a pod looks like a removed worker of a running job.

        The case does not mark such pods.
        """
        if self.case.mode != "nvidia" or not (pod.cpu or pod.mem):
            return False
        looks = (pod.cpu or 0, pod.mem or 0, pod.gpu)
        return any(
            looks == (need.cpu, need.memory, need.milli // WHOLE) and len(job.placement.worker) < job.max
            for job, need in ((job, self._needed[job.name]) for job in self.case.running)
        )

    def _put_shares(self) -> None:
        if self.case.mode == "nvidia" and self.reading.as_original:
            return
        for i, pod in enumerate(self.case.other_sharepods):
            node = self.world.inventory.nodes.find(pod.node)
            if node < 0 or pod.node in self.missing or pod.is_over:
                continue
            self._put_share(pod, pod.gpuid, node, f"other_sharepods[{i}]", leaves=pod.terminating)

    def _put_share(self, pod: CasePod | ServingPod, gpuid: str | None, node: int, path: str, *, leaves: bool) -> None:
        try:
            need = GpuReading("kubeshare", self.reading.as_original).live(pod)
        except Unreadable as error:
            raise BadInput.one(str(error), path) from None
        counted = need.milli > 0 and (counts_as_share(pod, gpuid) or not self.reading.as_original)
        device = self._take_shared(node, gpuid) if counted else NO_DEVICE
        if device >= 0 and gpuid is None:
            need = need._replace(milli=WHOLE)  # the device is unknown, so no other pod shares it
        self._use(node, need, [device] if device >= 0 else [])
        if leaves and not self.reading.as_original:
            self._leaves(path, pod, need, [device] if device >= 0 else [])

    def _put_holders(self) -> None:
        """Count KubeShare's holder pods beyond the devices known as shared."""
        if self.reading.as_original:
            return
        for node, name in enumerate(self.world.inventory.nodes):
            holders = sum(pod.gpu for pod in self.case.other_pods if pod.kubeshare_internal and pod.node == name)
            known = sum(at == node for at, _ in self._device_of)
            devices = [d for d in (self._take_device(node) for _ in range(holders - known)) if d >= 0]
            self._use(node, Needed(0, 0, WHOLE), devices)

    def _put_serving(self) -> None:
        for order, pod in enumerate(self.case.priority_pods):
            if pod.node is not None:
                node = self.world.inventory.nodes.find(pod.node)
                if node < 0 or pod.node in self.missing:
                    continue
                if self.case.mode == "kubeshare":
                    self._put_share(pod, pod.gpuid, node, f"priority_pods[{order}]", leaves=False)
                else:
                    devices = [d for d in (self._take_device(node) for _ in range(pod.gpu)) if d >= 0]
                    self._use(node, self.reading.live(pod), devices)
                continue
            try:
                need = self.reading.demand(pod)
            except Unreadable as error:
                self.refused[pod.name] = f"Invalid: {error}."
                continue
            self.world.foreign[pod.name] = Foreign(
                id=pod.name,
                milli=need.milli,
                gpu_memory=need.gpu_memory,
                cpu=need.cpu,
                memory=need.memory,
                serving=True,
                priority=pod.priority,
                created=float(order),
            )

    def _use(self, node: int, need: Needed, devices: list[int]) -> None:
        inventory = self.world.inventory
        inventory.foreign_cpu[node] += need.cpu
        inventory.foreign_memory[node] += need.memory
        for device in devices:
            inventory.foreign[device] += min(need.milli, WHOLE)
            inventory.foreign_gpu_memory[device] += need.gpu_memory
        inventory.changed()

    def _leaves(self, name: str, pod: CasePod | ServingPod, need: Needed, devices: list[int]) -> None:
        self.world.foreign[name] = Foreign(
            id=name,
            node=pod.node,
            devices=tuple(self.world.inventory.device_id(device) for device in devices),
            milli=need.milli,
            gpu_memory=need.gpu_memory,
            cpu=need.cpu,
            memory=need.memory,
            leaving=True,
        )
