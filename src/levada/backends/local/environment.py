"""What a worker is started with: its command, its environment, its limits. Pure: the same input, the same worker."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from levada.backends.local import files, mps
from levada.backends.local.files import Address
from levada.backends.local.processes import Spec
from levada.backends.local.roster import ONE_LAUNCHER, Member
from levada.backends.protocol import Launch
from levada.jobfile import torchrun

_MIB = 1 << 20
_LOG_BYTES, _LOG_PARTS = 64 << 20, 4
#: How long torch waits for late agents that may never come while fewer than the most are there.
_LAST_CALL_S = 1
#: Frameworks whose own launcher gives ranks to the workers.
_OWN_RANKS = ("torchrun", *ONE_LAUNCHER)
#: Where Kubernetes puts the script that names the hosts of an MPIJob.
_MOUNTED_HOSTS = "/etc/mpi/discover_hosts.sh"


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What all workers of one generation share."""

    job: str
    number: int
    world: int
    members: Sequence[Member]
    master: Address
    launch: Launch
    folder: str
    batch: int = 0
    server_url: str = ""
    token: str = ""
    #: A folder that all machines share; empty where each has its own.
    checkpoints: str = ""
    #: Where an MPS daemon serves; empty where there is none.
    mps_pipe: str = ""


def spec_of(member: Member, about: About) -> Spec:
    """What the shim of a member is to run; its machine completes the environment."""
    launch = about.launch
    env = {
        "PYTHONUNBUFFERED": "1",
        **_threads(launch),
        **launch.env,
        **_levada(member, about),
        **_tracking(about.job),
        "CUDA_VISIBLE_DEVICES": ",".join(member.devices),
        **mps.environment(member, launch.gpu_memory, about.mps_pipe),
        **_framework(member, about),
    }
    return Spec(
        argv=_argv(member, about),
        env=env,
        cwd=str(Path(launch.workdir).absolute()),
        grace_s=launch.grace_s,
        limits=_limits(member, launch),
        log_bytes=_LOG_BYTES,
        log_parts=_LOG_PARTS,
    )


def complete(env: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker on a machine whose supervisor has *environ*: all of it but what is Levada's own."""
    inherited = {name: value for name, value in environ.items() if not name.startswith("LEVADA_")}
    full = {**inherited, **env}
    # The Python that Levada runs with is found where there is no other.
    full["PATH"] = os.pathsep.join([full.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    return full


def _levada(member: Member, about: About) -> dict[str, str]:
    env = {
        "LEVADA_JOB": about.job,
        "LEVADA_GENERATION": str(about.world),
        "LEVADA_NODE": member.node,
        "LEVADA_SERVER": about.server_url,
        "LEVADA_TOKEN": about.token,
        "LEVADA_CHECKPOINT_DIR": files.checkpoint_folder(about.folder, about.checkpoints, about.job, about.number),
        "LEVADA_STATE_DIR": f"{about.folder}/{files.WORKERS}/{member.name}",
    }
    env["LEVADA_WORLD_SIZE"] = str(sum(other.workers for other in _workers(about)))
    if about.launch.framework not in _OWN_RANKS:
        env["LEVADA_RANK"] = str(_rank(member, about))
    if about.batch:
        env["LEVADA_BATCH_SIZE"] = str(about.batch)
    if about.launch.array_index is not None:
        env["LEVADA_ARRAY_INDEX"] = str(about.launch.array_index)
    return env


def _tracking(job: str) -> dict[str, str]:
    """So that a run which is resized or restarted stays one run."""
    run = hashlib.sha256(job.encode()).hexdigest()[:32]
    return {"WANDB_RUN_ID": run, "WANDB_RESUME": "allow", "MLFLOW_RUN_ID": run}


def _framework(member: Member, about: About) -> dict[str, str]:
    if about.launch.framework == "tensorflow":
        return {"TF_CONFIG": _tf_config(member, about)}
    if about.launch.framework == "torchrun":
        # Without it a torchrun that grows hangs.
        return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if about.launch.framework in ONE_LAUNCHER:
        return {}
    if not (about.launch.ranks or about.launch.max_workers > 1 or len(_workers(about)) > 1):
        # Libraries take them for a world that others started, and neither use all GPUs nor start their own processes.
        return {}
    peers = [other for other in _workers(about) if other.node == member.node]
    return {
        "RANK": str(_rank(member, about)),
        "WORLD_SIZE": str(len(_workers(about))),
        "LOCAL_RANK": str([other.name for other in peers].index(member.name) if member in peers else 0),
        "MASTER_ADDR": about.master.address,
        "MASTER_PORT": str(about.master.port),
    }


def _tf_config(member: Member, about: About) -> str:
    """As TensorFlow's operator writes it, but with the workers that there are: TF 2 waits for all that are listed."""
    groups = {"ps": [other for other in about.members if other.is_server], "worker": _workers(about)}
    kind = "ps" if member.is_server else "worker"
    value = {
        "cluster": {
            group: [f"{other.address}:{other.port}" for other in found] for group, found in groups.items() if found
        },
        "task": {"type": kind, "index": [other.name for other in groups[kind]].index(member.name)},
        "environment": "cloud",
    }
    return json.dumps(value, separators=(",", ":"))


def _argv(member: Member, about: About) -> list[str]:
    launch = about.launch
    if member.is_server:
        return list(launch.server_command or launch.command)
    if launch.framework == "torchrun":
        return _torchrun(member, about)
    if launch.framework in ONE_LAUNCHER:
        return _launcher(member, about)
    return list(launch.command)


def _torchrun(member: Member, about: About) -> list[str]:
    """One agent per node. All agents of a generation start and stop together, so the first may hold the store."""
    agents = _workers(about)
    first = member.name == agents[0].name
    options = [
        f"--nnodes={len(agents)}",
        # With underscores: torch before 2.0 knows its options by no other names.
        f"--nproc_per_node={member.workers}",
        "--rdzv_backend=c10d",
        f"--rdzv_endpoint={about.master.address}:{about.master.port}",
        f"--rdzv_id={about.job}-{about.world}",
        f"--rdzv_conf=last_call_timeout={_LAST_CALL_S},is_host={int(first)}",
        "--max_restarts=0",
    ]
    launcher = torchrun.read(about.launch.command)
    if launcher is not None:
        return launcher.merged(options)
    # A script by its name is run by torchrun's own Python; anything else is run as it stands.
    as_it_stands = [] if about.launch.command[0].endswith(".py") else ["--no_python"]
    return ["torchrun", *options, *as_it_stands, *about.launch.command]


def _launcher(member: Member, about: About) -> list[str]:
    hosts = f"{about.folder}/{files.DISCOVER_HOSTS}"
    # The launcher of an MPIJob looks for the hosts where Kubernetes has them.
    command = [word.replace(_MOUNTED_HOSTS, hosts) for word in about.launch.command]
    if about.launch.framework == "mpi" or any("horovodrun" in word for word in command):
        return command
    return [
        "horovodrun",
        "-np",
        str(member.workers),
        "--min-np",
        str(about.launch.min_workers),
        "--max-np",
        str(about.launch.max_workers),
        "--host-discovery-script",
        hosts,
        # Else a host that was taken away once never comes back.
        "--blacklist-cooldown-range",
        "10",
        "60",
        *command,
    ]


def _threads(launch: Launch) -> dict[str, str]:
    """Math libraries take all cores of the machine unless told otherwise."""
    return {"OMP_NUM_THREADS": str(max(1, launch.cpu // 1000))} if launch.cpu else {}


def _limits(member: Member, launch: Launch) -> dict[str, int]:
    """Memory is limited for workers without a GPU alone: drivers of GPUs reserve far more than is there."""
    return {"data": launch.memory * _MIB} if launch.memory and not member.devices and not member.is_server else {}


def _workers(about: About) -> list[Member]:
    return [member for member in about.members if not member.is_server]


def _rank(member: Member, about: About) -> int:
    """A parameter server has its own count."""
    return member.index if member.is_server else [other.name for other in _workers(about)].index(member.name)
