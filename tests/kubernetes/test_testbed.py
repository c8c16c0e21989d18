"""The test bed itself: start, stop, two side by side, nodes, restart of a program, stages, builder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kubernetes.testbed import build
from tests.kubernetes.testbed.api import Object, wait_for
from tests.kubernetes.testbed.bed import Bed
from tests.kubernetes.testbed.manifests import parse_nodes
from tests.kubernetes.testbed.process import NotReady, Process, child_environment
from tests.kubernetes.workloads import Namespace, is_running, pod
from tests.timeouts import WAIT_S

PROGRAMS = {
    "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler",
    "kwok", "mpi-operator", "training-operator", "jobset", "trainer",
}  # fmt: skip


def test_second_bed_runs_beside_the_first_and_leaves_nothing_behind(bed: Bed, built: Path) -> None:
    with Bed(built) as other:
        assert other.nodes("k80=4x2") == ["k80-0", "k80-1"]
        pids = other.pids
        assert pids.keys() == PROGRAMS
        assert not set(pids.values()) & set(bed.pids.values())
        assert len(bed.api.items("/api/v1/nodes")) == 16
        assert other.api.get("/version")["gitVersion"] == f"v{build.KUBERNETES}"
    assert [name for name, pid in pids.items() if pid is None or Path(f"/proc/{pid}").exists()] == []
    assert not other.folder.exists()


def test_foreground_bed_ends_cleanly_on_ctrl_c(built: Path) -> None:
    with _foreground() as command:
        folder = _kubeconfig(command).parent
        children = _children(command.pid)
        assert len(children) == len(PROGRAMS)
        command.send_signal(signal.SIGINT)
        assert command.wait(WAIT_S) == 0
    assert [child for child in children if _runs(child)] == []
    assert not folder.exists()


@pytest.mark.slow
def test_killed_bed_takes_its_programs_along_and_the_next_removes_its_directory(built: Path) -> None:
    with _foreground() as command:
        folder = _kubeconfig(command).parent
        children = _children(command.pid)
        command.kill()
    wait_for(lambda: not any(map(_runs, children)), "the programs end")
    assert folder.exists()
    with Bed(built):
        assert not folder.exists()


def test_nodes_have_their_gpus(bed: Bed) -> None:
    node = bed.api.get("/api/v1/nodes/v100-7")
    assert node["metadata"]["labels"]["levada.dev/accelerator"] == "v100"
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"


def test_node_text_is_checked() -> None:
    assert [node["metadata"]["name"] for node in parse_nodes("a100=8x1,h100-sxm=4x2")] == [
        "a100-0",
        "h100-sxm-0",
        "h100-sxm-1",
    ]
    with pytest.raises(ValueError, match="must have the form TYPE=GPUSxNODES"):
        parse_nodes("a100=8")


def test_restarted_program_goes_on_where_it_stopped(bed: Bed, namespace: Namespace) -> None:
    bed.process("kube-scheduler").kill()
    namespace.create(pod("late", gated=False))
    time.sleep(0.3)
    assert "nodeName" not in namespace.get("Pod", "late")["spec"]
    bed.start("kube-scheduler")
    namespace.wait_for_pods(1, is_running)
    before = bed.pids["kube-apiserver"]
    bed.restart("kube-apiserver")
    assert bed.pids["kube-apiserver"] != before
    assert is_running(namespace.get("Pod", "late"))


@pytest.mark.parametrize(("code", "phase"), [("0", "Succeeded"), ("3", "Failed")])
def test_duration_ends_a_pod(namespace: Namespace, code: str, phase: str) -> None:
    body = pod("short", gated=False)
    body["metadata"]["annotations"] = {"levada.dev/duration": "500ms", "levada.dev/exit-code": code}
    namespace.create(body)
    ended = wait_for(lambda: _with_phase(namespace, "short", phase), "the pod ends")
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == int(code)


def test_duration_may_be_added_while_the_pod_runs(namespace: Namespace) -> None:
    namespace.create(pod("long", gated=False))
    namespace.annotate(namespace.wait_for_pods(1, is_running)[0], duration="0s")
    wait_for(lambda: _with_phase(namespace, "long", "Succeeded"), "the pod ends")


def test_failing_program_shows_the_end_of_its_log(tmp_path: Path) -> None:
    script = "for i in $(seq 100); do echo line $i; done; exit 1"
    process = Process(["/bin/sh", "-c", script], tmp_path / "log", child_environment())
    process.start()
    with pytest.raises(NotReady, match=r"sh ended:\n(line \d+\n)+line 100$") as error:
        process.wait_until(lambda: False)
    assert "line 1\n" not in str(error.value)


def test_builder_says_in_one_line_that_go_is_missing(tmp_path: Path) -> None:
    (tmp_path / "go").write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    (tmp_path / "go").chmod(0o755)
    command = [sys.executable, "-m", "tests.kubernetes.testbed.build"]
    environment = os.environ | {"PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("testbed: Go is too old (go version go1.19.8 linux/amd64): install Go 1.26 or newer")
    assert done.stderr.count("\n") == 1


def test_helm_renders_charts(built: Path, tmp_path: Path) -> None:
    helm = str(built / "bin" / "helm")
    subprocess.run([helm, "create", "chart"], cwd=tmp_path, check=True, capture_output=True)
    subprocess.run([helm, "lint", "chart"], cwd=tmp_path, check=True, capture_output=True)
    rendered = subprocess.run([helm, "template", "chart"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "kind: Deployment" in rendered.stdout


def _with_phase(namespace: Namespace, name: str, phase: str) -> Object | None:
    found = namespace.get("Pod", name)
    return found if found["status"]["phase"] == phase else None


def _foreground() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.kubernetes.testbed", "--nodes", "a100=8x1"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _kubeconfig(command: subprocess.Popen[str]) -> Path:
    assert command.stdout is not None
    return Path(json.loads(command.stdout.readline())["kubeconfig"])


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
