"""Names that Levada reads and writes in a cluster."""

from __future__ import annotations

PREFIX = "levada.dev/"
#: Label of objects that users hand over to Levada.
QUEUE = PREFIX + "queue"
#: Scheduling gate of pods that wait for a node.
GATE = PREFIX + "placement"
HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
#: Written by Levada; see `stamp`.
STORE, EPOCH, NUMBER, GENERATION, GRANT = (
    PREFIX + name for name in ("store", "epoch", "number", "generation", "grant")
)
#: Written by Levada for users; see `face`.
STATE, REASON, WORKERS = (PREFIX + name for name in ("state", "reason", "workers"))
WRITTEN = (STORE, EPOCH, NUMBER, GENERATION, GRANT, STATE, REASON, WORKERS)
#: Written by users.
MIN_WORKERS, MAX_WORKERS, PREEMPTIBLE = (PREFIX + name for name in ("min-workers", "max-workers", "preemptible"))
#: The user who created an object; set by the admission policy.
USER = PREFIX + "user"
#: Of pods that Levada creates: the job object and the ordinal.
POD_JOB, POD_ORDINAL = PREFIX + "job", PREFIX + "ordinal"
#: Changed on an MPI launcher after a resize, so that its kubelet refreshes the list of hosts at once.
TOUCHED = PREFIX + "touched"
#: Label of objects that Levada created.
MANAGED_BY = "app.kubernetes.io/managed-by"
#: Annotations of job files that describe the client's machine.
CLIENT_ONLY = (PREFIX + "paths", PREFIX + "workdir")
#: Labels of objects that Kueue schedules.
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
FIELD_MANAGER = "levada"
#: Labels of nodes with the type of their GPUs, ours first.
ACCELERATORS = (
    PREFIX + "accelerator",
    "vodascheduler/accelerator",
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
)
#: Extended resources that are whole GPUs.
GPUS = ("nvidia.com/gpu", "amd.com/gpu")
