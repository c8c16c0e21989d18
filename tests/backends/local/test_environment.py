"""Command and environment of workers, by framework."""

from __future__ import annotations

import json
from typing import Any

import pytest

from levada.backends.local import mps
from levada.backends.local.environment import WorkerContext, complete, spec_of
from levada.backends.local.members import Member, covering, matched, members_of
from levada.backends.local.processes import WorkerSpec
from levada.backends.local.worker_files import MemberAddress
from levada.backends.protocol import Launch
from levada.core.grant import WorkerPlace
from tests.backends.contract import place


def specs(*places: WorkerPlace, world: int = 3, batch: int = 0, mps_pipe: str = "", **fields: Any) -> list[WorkerSpec]:
    """The processes started for these places."""
    launch = Launch(**{"command": ("python", "train.py"), "workdir": "/tmp", **fields})
    ports = iter(range(40001, 40099))
    members = members_of(
        places,
        framework=launch.framework,
        world=world,
        address=lambda node: f"10.0.0.{node[-1]}",
        port=lambda _node: next(ports),
    )
    about = WorkerContext(
        job="toy-1",
        number=7,
        world=world,
        members=members,
        master=MemberAddress(members[0].address, 29500),
        launch=launch,
        folder="/home/jobs/toy-1",
        batch=batch,
        server_url="http://10.0.0.9:80",
        token="secret",
        mps_pipe=mps_pipe,
    )
    return [spec_of(member, about) for member in members]


def test_a_worker_gets_the_documented_environment() -> None:
    first, second, third = specs(
        place(0, "node-0", "0"),
        place(1, "node-0", "1", "2"),
        place(2, "node-1"),
        batch=64,
        array_index=5,
        env={"LR": "1"},
    )
    assert {name: value for name, value in second.env.items() if name.startswith("LEVADA_")} == {
        "LEVADA_JOB": "toy-1",
        "LEVADA_GENERATION": "3",
        "LEVADA_RANK": "1",
        "LEVADA_WORLD_SIZE": "3",
        "LEVADA_NODE": "node-0",
        "LEVADA_SERVER": "http://10.0.0.9:80",
        "LEVADA_TOKEN": "secret",
        "LEVADA_CHECKPOINT_DIR": "/home/jobs/toy-1/checkpoints",
        "LEVADA_STATE_DIR": "/home/jobs/toy-1/workers/g3-1",
        "LEVADA_BATCH_SIZE": "64",
        "LEVADA_ARRAY_INDEX": "5",
    }
    torch = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    assert [second.env[name] for name in torch] == ["1", "3", "1", "10.0.0.0", "29500"]
    assert [third.env[name] for name in torch] == ["2", "3", "0", "10.0.0.0", "29500"]
    assert [one.env["CUDA_VISIBLE_DEVICES"] for one in (first, second, third)] == ["0", "1,2", ""]
    assert first.env["LR"] == "1"
    assert first.env["WANDB_RESUME"] == "allow"


def test_worker_names_do_not_depend_on_the_generation() -> None:
    names = ("WANDB_RUN_ID", "MLFLOW_RUN_ID")
    (first,) = specs(place(0, "node-0"), world=1)
    (later,) = specs(place(0, "node-1"), world=9)
    assert [first.env[name] for name in names] == [later.env[name] for name in names]


def test_a_job_cannot_override_levada_variables() -> None:
    (one,) = specs(place(0, "node-0", "0"), env={"LEVADA_TOKEN": "other", "CUDA_VISIBLE_DEVICES": "7"})
    assert one.env["LEVADA_TOKEN"] == "secret"
    assert one.env["CUDA_VISIBLE_DEVICES"] == "0"


def test_workers_inherit_the_environment_without_levada_variables() -> None:
    full = complete({"LR": "1", "HOME": "/job"}, {"HOME": "/me", "LANG": "C", "LEVADA_STATE": "x", "PATH": "/bin"})
    assert (full["HOME"], full["LANG"], full["LR"]) == ("/job", "C", "1")
    assert "LEVADA_STATE" not in full
    assert full["PATH"].startswith("/bin:")


def test_cores_and_memory_limits_are_passed_to_workers() -> None:
    with_gpu, without = specs(place(0, "node-0", "0"), place(1, "node-0"), cpu=2500, memory=512)
    assert with_gpu.env["OMP_NUM_THREADS"] == "2"
    assert with_gpu.limits == {}, "drivers reserve more than there is"
    assert without.limits == {"data": 512 << 20}


def test_torchrun_has_one_agent_per_node() -> None:
    first, second = specs(
        place(0, "node-0", "0"),
        place(1, "node-1", "0"),
        place(2, "node-0", "1"),
        framework="torchrun",
        command=("a.py",),
    )
    assert first.argv[:3] == ["torchrun", "--nnodes=2", "--nproc_per_node=2"]
    assert second.argv[:3] == ["torchrun", "--nnodes=2", "--nproc_per_node=1"]
    assert "--rdzv_endpoint=10.0.0.0:29500" in second.argv
    assert "--rdzv_conf=last_call_timeout=1,is_host=1" in first.argv
    assert "--rdzv_conf=last_call_timeout=1,is_host=0" in second.argv
    assert first.argv[-1] == "a.py"
    assert "--no_python" not in first.argv
    assert first.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert first.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert not {"RANK", "LEVADA_RANK", "MASTER_ADDR"} & first.env.keys(), "torchrun says so to its workers itself"
    (other,) = specs(place(0, "node-0"), framework="torchrun")
    assert list(other.argv[-3:]) == ["--no_python", "python", "train.py"]


def test_torchrun_in_the_command_is_used() -> None:
    (one,) = specs(
        place(0, "node-0", "0"),
        place(1, "node-0", "1"),
        framework="torchrun",
        command=("/x/torchrun", "--nnodes=1", "--nproc_per_node=2", "--tee", "3", "a.py", "--nnodes=7"),
    )
    assert sum("torchrun" in word for word in one.argv) == 1
    assert list(one.argv[:4]) == ["/x/torchrun", "--tee", "3", "--nnodes=1"]
    assert [word for word in one.argv if "nproc" in word] == ["--nproc_per_node=2"]
    assert list(one.argv[-2:]) == ["a.py", "--nnodes=7"]


TORCH = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}


def test_a_single_worker_has_no_rank_variables() -> None:
    """Otherwise Lightning waits for peers, and libraries that start one process per GPU start none."""
    (one,) = specs(place(0, "node-0", "0", "1"))
    assert not TORCH & one.env.keys()
    assert (one.env["LEVADA_RANK"], one.env["LEVADA_WORLD_SIZE"]) == ("0", "1")
    (own,) = specs(place(0, "node-0", "0", "1"), env={"RANK": "0", "WORLD_SIZE": "1"})
    assert (own.env["RANK"], own.env["WORLD_SIZE"]) == ("0", "1"), "what a job sets itself stays"


@pytest.mark.parametrize("asks", [{"max_workers": 4}, {"ranks": True}])
def test_a_single_elastic_worker_has_rank_variables(asks: dict[str, Any]) -> None:
    (one,) = specs(place(0, "node-0", "0"), **asks)
    assert [one.env[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")] == ["0", "1", "0"]
    assert one.env.keys() >= TORCH


def test_tf_config_lists_current_workers() -> None:
    first, second, server = specs(
        place(0, "node-0", "0"),
        place(1, "node-1", "0"),
        place(0, "node-1", group="server"),
        framework="tensorflow",
        server_command=("python", "ps.py"),
    )
    cluster = {"ps": ["10.0.0.1:40003"], "worker": ["10.0.0.0:40001", "10.0.0.1:40002"]}
    configs = [json.loads(process.env["TF_CONFIG"]) for process in (first, second, server)]
    assert [config["cluster"] for config in configs] == [cluster] * 3
    assert [config["task"] for config in configs] == [
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
        {"type": "ps", "index": 0},
    ]
    assert (second.argv, server.argv) == (["python", "train.py"], ["python", "ps.py"])
    assert server.env["CUDA_VISIBLE_DEVICES"] == ""
    assert server.env["LEVADA_STATE_DIR"].endswith("/g3-ps0")


def test_horovod_has_one_launcher_with_host_discovery() -> None:
    (one,) = specs(place(0, "node-0", "0"), place(1, "node-1", "0"), framework="horovod", min_workers=1, max_workers=4)
    command = " ".join(one.argv)
    assert command.startswith("horovodrun -np 2 --min-np 1 --max-np 4 ")
    assert "--host-discovery-script /home/jobs/toy-1/discover_hosts.sh" in command
    assert "--blacklist-cooldown-range" in command


def test_the_launcher_of_an_mpijob_calls_horovod_by_itself() -> None:
    launcher = "mkdir out; horovodrun -np 1 --host-discovery-script /etc/mpi/discover_hosts.sh python train.py"
    (one,) = specs(place(0, "node-0", "0"), framework="horovod", command=("bash", "-c", launcher))
    assert one.argv == ["bash", "-c", launcher.replace("/etc/mpi", "/home/jobs/toy-1")]


def test_another_mpi_launcher_runs_unchanged_with_a_host_file() -> None:
    places = (place(0, "node-0", "0"), place(1, "node-1", "0"))
    (one,) = specs(*places, framework="mpi", command=("sh", "-c", "cat /etc/mpi/discover_hosts.sh; ./train"))
    assert one.argv == ["sh", "-c", "cat /home/jobs/toy-1/discover_hosts.sh; ./train"]
    assert (one.env["LEVADA_WORLD_SIZE"], one.env["CUDA_VISIBLE_DEVICES"]) == ("2", "0,0")


@pytest.mark.parametrize("framework", ["plain", "torchrun", "horovod", "mpi", "tensorflow"])
def test_every_worker_gets_the_world_size(framework: str) -> None:
    places = (place(0, "node-0", "0"), place(1, "node-0", "1"), place(2, "node-1", "0"))
    assert {one.env["LEVADA_WORLD_SIZE"] for one in specs(*places, framework=framework)} == {"3"}


@pytest.mark.parametrize(
    ("milli", "memory", "pipe", "expected"),
    [
        (1000, 4096, "/mps", {}),
        (250, 0, "", {}),
        (250, 0, "/mps", {"CUDA_MPS_PIPE_DIRECTORY": "/mps", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}),
        (
            4,
            3072,
            "/mps",
            {
                "CUDA_MPS_PIPE_DIRECTORY": "/mps",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "1",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M",
            },
        ),
    ],
)
def test_a_part_of_a_gpu_is_limited_by_mps(milli: int, memory: int, pipe: str, expected: dict[str, str]) -> None:
    member = Member(name="g1-0", index=0, node="node-0", devices=("GPU-1",), milli=milli)
    assert mps.environment(member, memory, pipe) == expected


def test_workers_with_unchanged_places_stay() -> None:
    old = members_of(
        [place(0, "node-0", "0"), place(1, "node-0", "1"), place(2, "node-1", "0")],
        framework="plain",
        world=1,
        address=lambda _node: "127.0.0.1",
        port=lambda _node: 0,
    )
    stay, new = matched(old, [place(0, "node-0", "1"), place(1, "node-1", "0"), place(2, "node-1", "3")])
    assert [(one.name, one.index) for one in stay] == [("g1-1", 0), ("g1-2", 1)]
    assert new == [place(2, "node-1", "3")]


def test_a_worker_whose_gpu_fraction_changes_is_replaced() -> None:
    old = [Member(name="g1-0", index=0, node="node-0", devices=("0",), milli=500)]
    stay, new = matched(old, [place(0, "node-0", "0", milli=250)])
    assert (stay, len(new)) == ([], 1)


def test_a_process_serves_one_or_several_places() -> None:
    agents = [
        Member(name="g1-0", index=0, node="node-0", workers=2),
        Member(name="g1-1", index=1, node="node-1", workers=2),
    ]
    covered = [covering(agents, place(index, node)) for index, node in ((0, "node-0"), (1, "node-1"), (3, "node-1"))]
    assert [process.name for process in covered if process] == ["g1-0", "g1-1", "g1-1"]
