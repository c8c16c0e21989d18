"""Command, environment and limits of a worker; pure functions."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from levada.backends.local import mps, worker_files
from levada.backends.local.members import ONE_LAUNCHER, Member
from levada.backends.local.processes import WorkerSpec
from levada.backends.local.worker_files import MemberAddress
from levada.backends.protocol import Launch
from levada.jobfile import torchrun

_MIB = 1 << 20
_LOG_BYTES, _LOG_PARTS = 64 << 20, 4
#: How long torchrun waits for more agents once its minimum has joined.
_LAST_CALL_S = 1
#: Frameworks whose own launcher assigns the ranks.
_OWN_RANKS = ("torchrun", *ONE_LAUNCHER)
#: Path at which Kubernetes mounts the host discovery script of an MPIJob.
_MOUNTED_HOSTS = "/etc/mpi/discover_hosts.sh"


class WorkerContext(msgspec.Struct, frozen=True, kw_only=True):
    """Settings shared by all workers of a generation."""

    job: str
    number: int
    world: int
    members: Sequence[Member]
    master: MemberAddress
    launch: Launch
    folder: str
    batch: int = 0
    server_url: str = ""
    token: str = ""
    #: Checkpoint directory shared by all machines; empty if each has its own.
    checkpoints: str = ""
    #: Pipe folder of the MPS daemon; empty if there is none.
    mps_pipe: str = ""


def spec_of(member: Member, context: WorkerContext) -> WorkerSpec:
    """The spec for the shim of a member; its machine completes the environment."""
    launch = context.launch
    env = {
        "PYTHONUNBUFFERED": "1",
        **_threads(launch),
        **launch.env,
        **_levada(member, context),
        **_tracking(context.job),
        "CUDA_VISIBLE_DEVICES": ",".join(member.devices),
        **mps.environment(member, launch.gpu_memory, context.mps_pipe),
        **_framework(member, context),
    }
    return WorkerSpec(
        argv=_argv(member, context),
        env=env,
        cwd=str(Path(launch.workdir).absolute()),
        grace_s=launch.grace_s,
        limits=_limits(member, launch),
        log_bytes=_LOG_BYTES,
        log_parts=_LOG_PARTS,
    )


def complete(env: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The full environment of a worker: *env* over *environ* of the supervisor without its LEVADA_ variables."""
    inherited = {name: value for name, value in environ.items() if not name.startswith("LEVADA_")}
    full = {**inherited, **env}
    # Last in PATH: the Python that runs Levada, if there is no other.
    full["PATH"] = os.pathsep.join([full.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    return full


def _levada(member: Member, context: WorkerContext) -> dict[str, str]:
    env = {
        "LEVADA_JOB": context.job,
        "LEVADA_GENERATION": str(context.world),
        "LEVADA_NODE": member.node,
        "LEVADA_SERVER": context.server_url,
        "LEVADA_TOKEN": context.token,
        "LEVADA_CHECKPOINT_DIR": worker_files.checkpoint_folder(
            context.folder, context.checkpoints, context.job, context.number
        ),
        "LEVADA_STATE_DIR": f"{context.folder}/{worker_files.WORKERS}/{member.name}",
    }
    env["LEVADA_WORLD_SIZE"] = str(sum(other.workers for other in _workers(context)))
    if context.launch.framework not in _OWN_RANKS:
        env["LEVADA_RANK"] = str(_rank(member, context))
    if context.batch:
        env["LEVADA_BATCH_SIZE"] = str(context.batch)
    if context.launch.array_index is not None:
        env["LEVADA_ARRAY_INDEX"] = str(context.launch.array_index)
    return env


def _tracking(job: str) -> dict[str, str]:
    """Run ids for experiment trackers, so that a resized or restarted job stays one run."""
    run = hashlib.sha256(job.encode()).hexdigest()[:32]
    return {"WANDB_RUN_ID": run, "WANDB_RESUME": "allow", "MLFLOW_RUN_ID": run}


def _framework(member: Member, context: WorkerContext) -> dict[str, str]:
    if context.launch.framework == "tensorflow":
        return {"TF_CONFIG": _tf_config(member, context)}
    if context.launch.framework == "torchrun":
        # Without it, a growing torchrun hangs.
        return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if context.launch.framework in ONE_LAUNCHER:
        return {}
    if not (context.launch.ranks or context.launch.max_workers > 1 or len(_workers(context)) > 1):
        # With rank variables, libraries assume an external launcher and neither use all GPUs nor start processes.
        return {}
    peers = [other for other in _workers(context) if other.node == member.node]
    return {
        "RANK": str(_rank(member, context)),
        "WORLD_SIZE": str(len(_workers(context))),
        "LOCAL_RANK": str([other.name for other in peers].index(member.name) if member in peers else 0),
        "MASTER_ADDR": context.master.address,
        "MASTER_PORT": str(context.master.port),
    }


def _tf_config(member: Member, context: WorkerContext) -> str:
    """TF_CONFIG as written by TensorFlow's operator, but only with current workers: TF 2 waits for all listed ones."""
    groups = {"ps": [other for other in context.members if other.is_server], "worker": _workers(context)}
    kind = "ps" if member.is_server else "worker"
    value = {
        "cluster": {
            group: [f"{other.address}:{other.port}" for other in members]
            for group, members in groups.items()
            if members
        },
        "task": {"type": kind, "index": [other.name for other in groups[kind]].index(member.name)},
        "environment": "cloud",
    }
    return json.dumps(value, separators=(",", ":"))


def _argv(member: Member, context: WorkerContext) -> list[str]:
    launch = context.launch
    if member.is_server:
        return list(launch.server_command or launch.command)
    if launch.framework == "torchrun":
        return _torchrun(member, context)
    if launch.framework in ONE_LAUNCHER:
        return _launcher(member, context)
    return list(launch.command)


def _torchrun(member: Member, context: WorkerContext) -> list[str]:
    """One agent per node. All agents of a generation start and stop together, so the first one hosts the store."""
    agents = _workers(context)
    first = member.name == agents[0].name
    options = [
        f"--nnodes={len(agents)}",
        # With underscores: torch before 2.0 accepts no other spelling.
        f"--nproc_per_node={member.workers}",
        "--rdzv_backend=c10d",
        f"--rdzv_endpoint={context.master.address}:{context.master.port}",
        f"--rdzv_id={context.job}-{context.world}",
        f"--rdzv_conf=last_call_timeout={_LAST_CALL_S},is_host={int(first)}",
        "--max_restarts=0",
    ]
    launcher = torchrun.read(context.launch.command)
    if launcher is not None:
        return launcher.merged(options)
    # torchrun runs a .py script with its own Python; other commands run unchanged.
    no_python = [] if context.launch.command[0].endswith(".py") else ["--no_python"]
    return ["torchrun", *options, *no_python, *context.launch.command]


def _launcher(member: Member, context: WorkerContext) -> list[str]:
    hosts = f"{context.folder}/{worker_files.DISCOVER_HOSTS}"
    # The launcher of an MPIJob expects the script at its path in Kubernetes.
    command = [word.replace(_MOUNTED_HOSTS, hosts) for word in context.launch.command]
    if context.launch.framework == "mpi" or any("horovodrun" in word for word in command):
        return command
    return [
        "horovodrun",
        "-np",
        str(member.workers),
        "--min-np",
        str(context.launch.min_workers),
        "--max-np",
        str(context.launch.max_workers),
        "--host-discovery-script",
        hosts,
        # Without it, a removed host can never be used again.
        "--blacklist-cooldown-range",
        "10",
        "60",
        *command,
    ]


def _threads(launch: Launch) -> dict[str, str]:
    """Thread limit for math libraries, which otherwise use all cores of the machine."""
    return {"OMP_NUM_THREADS": str(max(1, launch.cpu // 1000))} if launch.cpu else {}


def _limits(member: Member, launch: Launch) -> dict[str, int]:
    """Memory limit, only for workers without a GPU: GPU drivers reserve more address space than there is memory."""
    return {"data": launch.memory * _MIB} if launch.memory and not member.devices and not member.is_server else {}


def _workers(context: WorkerContext) -> list[Member]:
    return [member for member in context.members if not member.is_server]


def _rank(member: Member, context: WorkerContext) -> int:
    """The rank of a worker; the index of a parameter server."""
    return member.index if member.is_server else [other.name for other in _workers(context)].index(member.name)
