"""Kubeflow jobs become Levada jobs; faults have their path in the manifest."""

from collections.abc import Callable
from typing import Any

import pytest

from levada.errors import BadInput
from levada.jobfile.document import Document, Serving
from levada.jobfile.load import check, load
from levada.jobfile.model import Job, JobSpec
from levada.jobfile.pods import expanded
from levada.jobfile.pytorchjob import script_of
from tests.jobfile.manifests import MPI, POD, TF, TORCH, changed, container, set_env


def spec_of(document: Document) -> JobSpec:
    assert isinstance(document.content, Job)
    return document.content.spec


def lines(manifest: dict[str, Any]) -> list[str]:
    with pytest.raises(BadInput) as caught:
        check(manifest)
    return [str(fault) for fault in caught.value.faults]


def sizes(spec: JobSpec) -> tuple[int, int, int | None]:
    return (spec.workers.min, spec.workers.max, spec.workers.desired)


@pytest.mark.parametrize("version", ["kubeflow.org/v1", "kubeflow.org/v2beta1"])
def test_mpijob(version: str) -> None:
    document = check({**MPI, "apiVersion": version})
    spec = spec_of(document)
    assert (document.kind, document.name, document.keeps_name, document.needs_cluster) == ("MPIJob", "mnist", False, "")
    assert sizes(spec) == (1, 8, 2)
    assert (spec.epochs, spec.priority, spec.gpu_types, spec.gpus_per_worker) == (150, -3, ["v100"], 1)
    assert (spec.resources.cpu, spec.resources.memory, spec.retries) == (2000, 4096, 6)
    assert spec.run is not None
    assert spec.run.framework == "horovod"
    assert spec.run.command[:2] == ["/bin/bash", "-c"]
    assert document.source["spec"] == MPI["spec"]


def test_mpijob_with_the_newer_names() -> None:
    def rename(manifest: dict[str, Any]) -> None:
        for old, new in (("NP", "NUM_PROC"), ("MIN_NP", "MIN_NUM_PROC"), ("MAX_NP", "MAX_NUM_PROC")):
            for item in container(manifest, "Launcher")["env"]:
                item["name"] = new if item["name"] == old else item["name"]

    assert sizes(spec_of(check(changed(MPI, rename)))) == (1, 8, 2)


@pytest.mark.parametrize(
    ("np", "least", "most", "range_of_it"),
    [
        (None, None, None, (2, 2, None)),  # Worker.replicas
        (None, "2", "4", (2, 4, 2)),
        ("0", "2", "4", (2, 4, 2)),  # 0 is not asking
        ("3", None, None, (3, 3, 3)),
        (None, None, "4", (1, 4, 1)),
        (None, "2", None, (2, 2, 2)),
    ],
)
def test_mpijob_that_leaves_sizes_out(
    np: str | None, least: str | None, most: str | None, range_of_it: tuple[int, int, int | None]
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        for name, value in (("NP", np), ("MIN_NP", least), ("MAX_NP", most)):
            set_env(manifest, name, value)

    assert sizes(spec_of(check(changed(MPI, change)))) == range_of_it


def test_mpijob_counts_processes_and_we_count_workers() -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["spec"]["slotsPerWorker"] = 2
        for name, value in (("NP", "4"), ("MIN_NP", "2"), ("MAX_NP", "8")):
            set_env(manifest, name, value)

    assert sizes(spec_of(check(changed(MPI, change)))) == (1, 4, 2)


ENV = "spec.mpiReplicaSpecs.Launcher.template.spec.containers[0].env"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda m: set_env(m, "NP", "9"), f"{ENV}[5].value (NP): must be between min (1) and max (8)"),
        (lambda m: set_env(m, "MAX_NP", "0"), f"{ENV}[5].value (MAX_NP): must be at least 1"),
        (lambda m: set_env(m, "MIN_NP", "many"), f"{ENV}[5].value (MIN_NP): must be a whole number"),
        (lambda m: set_env(m, "MIN_NP", "9"), f"{ENV}[2].value (MAX_NP): must be at least min (9)"),
        (lambda m: set_env(m, "EPOCHS", ""), f"{ENV}[5].value (EPOCHS): must be a whole number"),
        (lambda m: set_env(m, "NUM_PROC", "1"), f"{ENV}[1].value (NP): is a synonym of NUM_PROC; use only one"),
        (lambda m: m["spec"].update(slotsPerWorker=3), f"{ENV}[1].value (NP): must be a multiple of slotsPerWorker (3)"),
        (lambda m: m["spec"]["mpiReplicaSpecs"].pop("Worker"), "spec.mpiReplicaSpecs.Worker: is required"),
        (lambda m: m["spec"].pop("mpiReplicaSpecs"), "spec.mpiReplicaSpecs: is required"),
        (lambda m: m["spec"].update(slotPerWorker=1), "spec.slotPerWorker: unknown field; did you mean slotsPerWorker?"),
        (lambda m: m["metadata"].update(name="A_b"), "metadata.name: must be lower-case letters, digits and dashes, and begin and end with a letter or digit"),
        (lambda m: m.update(apiVersion="kubeflow.org/v2"), "apiVersion: must be kubeflow.org/v1 or kubeflow.org/v2beta1"),
        (lambda m: container(m, "Worker").update(resources={"limits": {"memory": "lots"}}), "spec.mpiReplicaSpecs.Worker.template.spec.containers[0].resources.limits.memory: must be an amount of memory, e.g. 8Gi"),
        (lambda m: m.update(spec=[]), "spec: must be a mapping"),
    ],
)  # fmt: skip
def test_fault_of_an_mpijob(change: Callable[[dict[str, Any]], Any], line: str) -> None:
    assert line in lines(changed(MPI, change))


def test_tfjob() -> None:
    document = check(TF)
    spec = spec_of(document)
    assert (document.kind, document.keeps_name) == ("TFJob", True)
    assert sizes(spec) == (1, 4, 3)
    # What is requested counts, a limit alone is a request, and all containers add up.
    assert (spec.resources.cpu, spec.resources.memory, spec.gpus_per_worker) == (1500, 8192, 1)
    assert (spec.queue, spec.labels["team"], spec.checkpoint.grace_period) == ("lab", "vision", 5)
    servers = spec.parameter_servers
    assert servers is not None
    assert (servers.replicas, servers.cpu, servers.memory, servers.command) == (2, 4000, 8192, ["python3", "serve.py"])
    assert spec.run is not None
    assert (spec.run.command, spec.run.framework) == (["python3", "train.py"], "tensorflow")


def test_tfjob_in_camel_case_and_without_a_range() -> None:
    def camel(manifest: dict[str, Any]) -> None:
        spec = manifest["spec"]
        spec["minInstances"], spec["maxInstances"] = spec.pop("min-instances"), spec.pop("max-instances")

    assert sizes(spec_of(check(changed(TF, camel)))) == (1, 4, 3)

    def rigid(manifest: dict[str, Any]) -> None:
        del manifest["spec"]["min-instances"], manifest["spec"]["max-instances"]

    assert sizes(spec_of(check(changed(TF, rigid)))) == (3, 3, 3)


def shared(manifest: dict[str, Any], **annotations: str) -> None:
    manifest["metadata"]["annotations"] = {"DRAGON_KUBESHARE": "true"}
    worker = manifest["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    worker["metadata"]["annotations"] = {f"kubeshare/{name}": value for name, value in annotations.items()}


def test_tfjob_with_a_part_of_a_gpu() -> None:
    document = check(changed(TF, lambda m: shared(m, gpu_request="0.3334", gpu_limit="1.0", gpu_mem="3189243904")))
    # Parts are in 1/1000ths, rounded up; the limits' GPU does not count.
    assert (spec_of(document).gpus_per_worker, spec_of(document).gpu_memory) == (0.334, 3042)


def test_tfjob_with_tags() -> None:
    tagged = changed(TF, lambda m: shared(m, gpu_request="0.5", gpu_mem="1024") or m["spec"]["tfReplicaSpecs"]["Worker"]["template"]["metadata"]["annotations"].update({"kubeshare/sched_anti-affinity": "a"}))  # fmt: skip
    assert check(tagged).tags == {"anti_affinity": "a"}


NOTES = "spec.tfReplicaSpecs.Worker.template.metadata.annotations"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda m: shared(m, gpu_request="1.5"), f"{NOTES}.kubeshare/gpu_request: must be a fraction of one GPU: 0 to 1"),
        (lambda m: shared(m, gpu_request="half"), f"{NOTES}.kubeshare/gpu_request: must be a number"),
        (lambda m: shared(m, gpu_request="0.5", gpu_limit="0.4", gpu_mem="1"), f"{NOTES}.kubeshare/gpu_limit: must be between gpu_request (0.5) and 1"),
        (lambda m: shared(m, gpu_mem="1024"), f"{NOTES}.kubeshare/gpu_mem: requires kubeshare/gpu_request: the fraction of a GPU, e.g. 0.5"),
        (lambda m: shared(m, gpu_limit="1.0"), f"{NOTES}.kubeshare/gpu_limit: requires kubeshare/gpu_request: the fraction of a GPU, e.g. 0.5"),
        (lambda m: shared(m, gpu_request="0.5"), f"{NOTES}.kubeshare/gpu_mem: is required with gpu_request: bytes of GPU memory"),
        (lambda m: m["spec"].update({"min-instances": 5}), "spec.max-instances: must be at least min (5)"),
        (lambda m: m["spec"].update({"minInstances": 5}), "spec.minInstances: is a synonym of min-instances; use only one"),
        (lambda m: m["spec"].update({"min-instance": 5}), "spec.min-instance: unknown field; did you mean min-instances or minInstances?"),
        (lambda m: m["spec"]["tfReplicaSpecs"]["Worker"].update(replicas=9), "spec.tfReplicaSpecs.Worker.replicas: must be between min (1) and max (4)"),
        (lambda m: m["spec"]["tfReplicaSpecs"].update(Chief={}), "spec.tfReplicaSpecs.Chief: not supported; make it worker 0 (the chief) or a separate job"),
        (lambda m: m["spec"]["tfReplicaSpecs"].pop("Worker"), "spec.tfReplicaSpecs.Worker: is required"),
        (lambda m: m["spec"]["tfReplicaSpecs"]["PS"].update(restartPolicy="Sometimes"), "spec.tfReplicaSpecs.PS.restartPolicy: must be Always, OnFailure, Never or ExitCode"),
        (lambda m: m["spec"]["tfReplicaSpecs"]["PS"]["template"]["spec"].update(containers=[]), "spec.tfReplicaSpecs.PS.template.spec.containers: must have at least 1 item"),
    ],
)  # fmt: skip
def test_fault_of_a_tfjob(change: Callable[[dict[str, Any]], Any], line: str) -> None:
    assert line in lines(changed(TF, change))


def test_pytorchjob() -> None:
    document = check(TORCH)
    spec = spec_of(document)
    assert document.needs_cluster == ""
    assert sizes(spec) == (1, 4, 2)
    assert (spec.gpus_per_worker, spec.gpu_types, spec.time_limit, spec.ttl, spec.retries) == (
        1,
        ["a100"],
        3600,
        60,
        10,
    )
    assert spec.run is not None
    assert (spec.run.framework, spec.run.command) == ("torchrun", ["python", "train.py", "--lr", "0.1"])


def test_pytorchjob_without_elasticity_has_one_size() -> None:
    def change(manifest: dict[str, Any]) -> None:
        del manifest["spec"]["elasticPolicy"]
        groups = manifest["spec"]["pytorchReplicaSpecs"]
        groups["Master"] = {"replicas": 1, "template": groups["Worker"]["template"]}
        container(manifest, "Worker")["command"] = ["python", "ddp.py"]

    spec = spec_of(check(changed(TORCH, change)))
    assert sizes(spec) == (3, 3, 3)
    assert spec.run is not None
    assert (spec.run.framework, spec.run.command) == ("plain", ["python", "ddp.py"])


def test_elastic_pytorchjob_without_torchrun_runs_its_command_as_it_is() -> None:
    spec = spec_of(
        check(changed(TORCH, lambda m: container(m, "Worker").update(command=["sh", "-c", "python ddp.py"])))
    )
    assert sizes(spec) == (1, 4, 2)
    assert spec.run is not None
    assert (spec.run.framework, spec.run.command) == ("plain", ["sh", "-c", "python ddp.py"])


def test_mpijob_without_horovodrun_is_a_launcher_that_runs_as_it_is() -> None:
    def change(manifest: dict[str, Any]) -> None:
        container(manifest, "Launcher").update(command=["mpirun", "python", "train.py"], args=[])

    spec = spec_of(check(changed(MPI, change)))
    assert spec.run is not None
    assert (spec.run.framework, spec.run.command) == ("mpi", ["mpirun", "python", "train.py"])


def test_where_its_user_finds_programs_is_a_note_that_its_own_environment_outdoes() -> None:
    def noted(text: str) -> dict[str, Any]:
        return changed(MPI, lambda m: m["metadata"].update(annotations={"levada.dev/paths": text}))

    run = spec_of(check(noted('{"PATH": "/mine", "NP": "9"}'))).run
    assert run is not None
    assert (run.env["PATH"], run.env["NP"]) == ("/mine", "2")
    for bad in ("{", "[]", '{"PATH": 3}'):
        (line,) = lines(noted(bad))
        assert line.startswith("metadata.annotations.levada.dev/paths: must be a JSON object")


def test_fault_of_a_pytorchjob() -> None:
    manifest = changed(TORCH, lambda m: m["spec"]["elasticPolicy"].update(minReplicas=3))
    assert lines(manifest) == ["spec.pytorchReplicaSpecs.Worker.replicas: must be between min (3) and max (4)"]


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("torchrun train.py", "python train.py"),
        ("/opt/bin/torchrun --standalone --nnodes 2 train.py -m", "python train.py -m"),
        ("python3 -m torch.distributed.run --nproc-per-node=gpu -m pkg.train a", "python3 -m pkg.train a"),
        ("torchrun --no_python ./train a", "./train a"),
        ("python train.py", None),
        ("torchrun --nnodes 2", None),
    ],
)
def test_script_of_torchrun(command: str, script: str | None) -> None:
    assert script_of(command.split()) == (script.split() if script is not None else None)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: container(m, "Worker").pop("command"), "only the container image defines it"),
        (lambda m: container(m, "Worker").update(command=["sh", "-c", "torchrun train.py"]), "name torchrun as the program"),
        (lambda m: m["spec"].update(nprocPerNode="2"), "has several processes"),
        (lambda m: container(m, "Worker").update(command=["torchrun", "--nproc_per_node", "gpu", "t.py"], resources={"limits": {"nvidia.com/gpu": 2}}), "has several processes"),
        (lambda m: container(m, "Worker").update(env=[{"name": "A", "valueFrom": {}}]), "A is set by valueFrom, which only Kubernetes can resolve"),
    ],
)  # fmt: skip
def test_what_only_a_cluster_can_run(change: Callable[[dict[str, Any]], Any], why: str) -> None:
    assert why in check(changed(TORCH, change)).needs_cluster


def test_serving() -> None:
    assert check(POD).content == Serving(replicas=1)
    template = {"metadata": {"annotations": {"levada.dev/serving": "true"}}}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 3, "template": template}}  # fmt: skip
    assert check(deployment).content == Serving(replicas=3)
    assert lines({**POD, "metadata": {"name": "p"}}) == [
        'metadata.annotations: a Pod is accepted only for serving: annotate it levada.dev/serving: "true", '
        "or label it levada.dev/queue to run it as a job"
    ]


def test_all_kinds_in_one_file_share_their_names() -> None:
    import yaml

    assert [item.kind for item in load(yaml.safe_dump_all([MPI, TF, TORCH, POD]))] == ["MPIJob", "TFJob", "PyTorchJob", "Pod"]  # fmt: skip
    twice = changed(TF, lambda m: m["metadata"].update(name="mnist"))
    with pytest.raises(BadInput, match=r"document 2: metadata\.name: must differ from that of document 1"):
        load(yaml.safe_dump_all([MPI, twice]))


def test_commands_are_expanded_as_kubernetes_does() -> None:
    words = expanded(["$(A)/$(B)", "$$(A) $(date) $A $$"], {"A": "x"})
    assert words == ("x/$(B)", "$(A) $(date) $A $")


def test_a_bad_tfjob_is_told_all_its_faults_at_once() -> None:
    def spoil(manifest: dict[str, Any]) -> None:
        manifest["spec"] |= {"min-instances": 4, "max-instances": 1, "colour": "red"}
        groups = manifest["spec"]["tfReplicaSpecs"]
        groups["Chief"] = groups["PS"]
        groups["Worker"]["replicas"] = 0
        container(manifest, "Worker", 1)["name"] = "main"

    groups = "spec.tfReplicaSpecs"
    assert sorted(lines(changed(TF, spoil))) == [
        "spec.colour: unknown field",
        "spec.max-instances: must be at least min (4)",
        f"{groups}.Chief: not supported; make it worker 0 (the chief) or a separate job",
        f"{groups}.Worker.replicas: must be at least 1",
        f"{groups}.Worker.template.spec.containers: must have one named tensorflow",
    ]


def test_a_bad_mpijob_and_a_bad_pytorchjob_too() -> None:
    def without_launcher(manifest: dict[str, Any]) -> None:
        del manifest["spec"]["mpiReplicaSpecs"]["Launcher"]
        container(manifest, "Worker")["resources"]["limits"]["memory"] = "much"

    groups = "spec.mpiReplicaSpecs"
    first, second = sorted(lines(changed(MPI, without_launcher)))
    assert first == f"{groups}.Launcher: is required"
    assert second.startswith(f"{groups}.Worker.template.spec.containers[0].resources.limits.memory: ")

    def wrong_master(manifest: dict[str, Any]) -> None:
        manifest["spec"]["elasticPolicy"] = {"minReplicas": 3, "maxReplicas": 2}
        manifest["spec"]["pytorchReplicaSpecs"]["Boss"] = {}

    messages = sorted(lines(changed(TORCH, wrong_master)))
    assert messages[0] == "spec.elasticPolicy.maxReplicas: must be at least min (3)"
    assert "spec.pytorchReplicaSpecs.Boss: unknown group; a PyTorchJob has Master and Worker" in messages


def test_a_manifest_of_ten_thousand_faults_is_read_at_once() -> None:
    many = changed(TF, lambda m: container(m, "Worker", 1).update(env=[{"name": 1}] * 10_000))
    with pytest.raises(BadInput) as caught:
        check(many)
    assert len(caught.value.faults) == 100
    assert caught.value.more == 9_900
    assert str(caught.value).endswith("\nand 9900 more")
