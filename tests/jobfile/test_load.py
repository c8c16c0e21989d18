"""Job files: the documented example, and one line for each fault."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from levada.errors import BadInput
from levada.jobfile.load import load
from levada.jobfile.model import Job, Queue
from levada.jobfile.read import read_bytes

JOB = """
apiVersion: levada.dev/v1
kind: Job
metadata: {name: resnet50}
spec:
  workers: {min: 1, max: 8, desired: 4}
  gpusPerWorker: 1
  gpuTypes: [a100, v100]
  resources: {cpu: 4, memory: 8Gi}
  parameterServers: {replicas: 1, cpu: 4, memory: 8Gi}
  queue: default
  priority: 0
  weight: 1.0
  steps: 200000
  deadline: 2h
  timeLimit: 12h
  retries: 3
  ttl: 7d
  after: [prepare-data-20261115-101500-a1b2]
  array: 0-9
  preemptible: auto
  checkpoint: {gracePeriod: 60s}
  labels: {team: vision}
  notify: [https://example.org/hook]
  run:
    command: [python, train.py]
    env: {LR: "0.1"}
    workdir: .
  kubernetes: {image: example/train, template: {spec: {}}}
"""


def job(spec: str, name: str = "j") -> str:
    """A job file with *spec* in flow style and something to run."""
    return (
        f"apiVersion: levada.dev/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec: {{run: {{command: [x]}}, {spec}}}\n"
    )


def loaded(text: str) -> Job:
    (result,) = load(text)
    assert isinstance(result.content, Job)
    return result.content


def lines(text: str) -> list[str]:
    with pytest.raises(BadInput) as caught:
        load(text)
    return [str(fault) for fault in caught.value.faults]


def test_documented_job() -> None:
    spec = loaded(JOB).spec
    assert (spec.workers.min, spec.workers.max, spec.workers.desired) == (1, 8, 4)
    assert (spec.resources.cpu, spec.resources.memory) == (4000, 8192)
    assert (spec.deadline, spec.time_limit, spec.ttl, spec.checkpoint.grace_period) == (7200, 43200, 604800, 60)
    assert spec.run is not None
    assert spec.run.env == {"LR": "0.1"}


def test_least_job() -> None:
    spec = loaded(job("")).spec
    assert (spec.workers.min, spec.workers.max, spec.gpus_per_worker, spec.preemptible) == (1, 1, 1, "auto")


def test_rigid_job() -> None:
    workers = loaded(job("workers: 4")).spec.workers
    assert (workers.min, workers.max) == (4, 4)


def test_deadline_may_be_a_time() -> None:
    assert loaded(job("deadline: 2026-11-15T18:00:00Z")).spec.deadline == datetime(2026, 11, 15, 18, tzinfo=UTC)


def test_numbers_as_yaml_writes_them() -> None:
    assert loaded(job("weight: 1e-3")).spec.weight == 0.001
    assert loaded(job("resources: {memory: 1073741824}")).spec.resources.memory == 1024


def test_queue() -> None:
    (result,) = load(
        "apiVersion: levada.dev/v1\nkind: Queue\nmetadata: {name: vision}\n"
        "spec: {parent: root, weight: 2, guaranteed: {a100: 8}, limit: {a100: 16}, borrow: true, perUserLimit: {a100: 4}}"
    )
    assert isinstance(result.content, Queue)
    assert result.content.spec.guaranteed == {"a100": 8}


def test_queue_file_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "queues.md").read_text()
    prod, nlp = load(page.split("```yaml\n", 1)[1].split("```")[0])
    assert isinstance(prod.content, Queue)
    assert isinstance(nlp.content, Queue)
    assert (prod.content.spec.guaranteed, nlp.content.spec.per_user_limit) == ({"a100": 8}, {"*": 4})


def test_a_queue_names_no_more_types_than_a_job() -> None:
    result = lines(
        "apiVersion: levada.dev/v1\nkind: Queue\nmetadata: {name: vision}\n"
        f"spec: {{limit: {{{', '.join(f't{i}: 1' for i in range(257))}}}}}"
    )
    assert result == ["spec.limit: must have at most 256 items"]


def test_json_and_lists_and_documents() -> None:
    one = '{"apiVersion": "levada.dev/v1", "kind": "Job", "metadata": {"name": "%s"}, "spec": {"run": {"command": ["x"]}}}'
    assert len(load(one % "a")) == 1
    assert len(load(f"[{one % 'a'}, {one % 'b'}]")) == 2
    assert len(load(f"{one % 'a'}\n---\n---\n{one % 'b'}\n")) == 2


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("workers: 0", "spec.workers.min: must be at least 1"),
        ("workers: {min: 4, max: 2}", "spec.workers.max: must be at least min (4)"),
        ("workers: {min: 2, max: 4, desired: 9}", "spec.workers.desired: must be between min (2) and max (4)"),
        ("workers: {min: 3, max: 3, step: 2}", "spec.workers: no multiple of step (2) is between min (3) and max (3)"),
        ("workers: {stp: 2}", "spec.workers.stp: unknown field; did you mean step?"),
        ("priorty: 1", "spec.priorty: unknown field; did you mean priority?"),
        ("zzz: 1", "spec.zzz: unknown field"),
        ("gpus_per_worker: 1", "spec.gpus_per_worker: unknown field; did you mean gpusPerWorker?"),
        ("gpusPerWorker: 0.5", "spec.gpusPerWorker: a fraction of a GPU requires gpuMemory"),
        ("gpusPerWorker: 1.5", "spec.gpusPerWorker: must be a whole number if above 1"),
        ("gpusPerWorker: 0.0005, gpuMemory: 1Gi", "spec.gpusPerWorker: must be in steps of 0.001"),
        ("resources: {cpu: -1}", "spec.resources.cpu: must be a number of cores, e.g. 4, 0.5 or 500m"),
        ("resources: {memory: lots}", "spec.resources.memory: must be an amount of memory, e.g. 8Gi"),
        ("timeLimit: 2 hours", "spec.timeLimit: must be a duration, e.g. 90s, 2h, 1h30m or 7d"),
        ("deadline: 2026-11-15T18:00:00", "spec.deadline: must be a duration, e.g. 2h, or a time with its zone, e.g. 2026-11-15T18:00:00Z"),
        ("timeLimit: 1000000001", "spec.timeLimit: must be at most 1000000000.0"),
        ("ttl: 1000000000000000000", "spec.ttl: must be at most 1000000000.0"),
        ("deadline: 1000000000000000000", "spec.deadline: must be 0 to 1000000000 seconds"),
        ("deadline: -1", "spec.deadline: must be 0 to 1000000000 seconds"),
        ("deadline: .nan", "spec.deadline: must be 0 to 1000000000 seconds"),
        ("deadline: [1]", "spec.deadline: must be a duration, e.g. 2h, or a time with its zone, e.g. 2026-11-15T18:00:00Z"),
        ("checkpoint: {gracePeriod: 1000000000000000000}", "spec.checkpoint.gracePeriod: must be at most 1000000000.0"),
        ("steps: 1, epochs: 1", "spec.epochs: give steps or epochs, not both"),
        ("weight: .nan", "spec.weight: must be a finite number"),
        ("array: 9-0", "spec.array: 9-0 is descending"),
        ("array: '1,0-3'", "spec.array: 1 is given twice"),
        ("workers: 2000000", "spec.workers.max: must be at most 1000000"),
        ("array: 0-10000", "spec.array: must have at most 10000 indices; submit several arrays, e.g. 0-9999 and 10000-19999"),
        ("preemptible: maybe", "spec.preemptible: must be 'auto', true or false"),
        ("labels: {a: 1}", "spec.labels.a: must be text (put it in quotes)"),
        ("notify: [ftp://x]", "spec.notify[0]: must be an http or https address"),
        (f"notify: {['http://h'] * 17}", "spec.notify: must have at most 16 items"),
        (f"gpuTypes: {[f't{i}' for i in range(257)]}", "spec.gpuTypes: must have at most 256 items"),
        ("workers: 1:30", "spec.workers: 1:30 is not a range; write {min: 1, max: 30}"),
        ("workers: 2-4", "spec.workers: 2-4 is not a range; write {min: 2, max: 4}"),
        ("workers: [1, 8]", "spec.workers: must be a whole number, or a range, e.g. {min: 1, max: 8}"),
        ("workers: {min: 1:30}", "spec.workers.min: must be a whole number"),
        ("timeLimit: 1:30", "spec.timeLimit: must be a duration, e.g. 90s, 2h, 1h30m or 7d"),
        ("command: [x]", "spec.command: unknown field; did you mean spec.run.command?"),
        ("min: 1", "spec.min: unknown field; did you mean spec.workers.min?"),
        ("cpu: 1", "spec.cpu: unknown field; did you mean spec.resources.cpu?"),
        ("run: {command: python train.py}", "spec.run.command: must be a list, e.g. [python, train.py]"),
        ("run: {command: []}", "spec.run.command: must have at least 1 item"),
        ("run: null", "spec.run: is required (or kubernetes)"),
    ],
)  # fmt: skip
def test_fault_of_a_spec(spec: str, line: str) -> None:
    text = job(spec) if not spec.startswith("run") else job("").replace("run: {command: [x]}, ", spec)
    assert line in lines(text)


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "ä", "a" * 43])
def test_bad_name(name: str) -> None:
    assert [line.partition(":")[0] for line in lines(job("", name=f'"{name}"'))] == ["metadata.name"]


def test_all_faults_of_all_documents_in_order() -> None:
    result = lines(f"{job('workers: 0, queue: 3')}---\n{job('', name='ok')}---\nkind: Foo\n---\n- 3\n")
    assert result == [
        "document 1: spec.workers.min: must be at least 1",
        "document 1: spec.queue: must be text (put it in quotes)",
        "document 3: apiVersion: must be levada.dev/v1",
        "document 3: kind: must be Job, Queue, MPIJob, PyTorchJob, TFJob, JobSet, TrainJob, Pod or Deployment",
        "document 4: must be a mapping with apiVersion, kind, metadata and spec",
    ]


def test_all_faults_of_one_job_at_once() -> None:
    assert lines(job("weight: 1, weight: 2, workers: 0")) == [
        "spec.weight: is given twice",
        "spec.workers.min: must be at least 1",
    ]
    text = "{apiVersion: levada.dev/v1, kind: Job, metadata: {name: j}, spec: {command: [x], workers: 1:30}, env: {}}"
    assert lines(text) == [
        "spec.workers: 1:30 is not a range; write {min: 1, max: 30}",
        "spec.run: is required (or kubernetes)",
        "spec.command: unknown field; did you mean spec.run.command?",
        "env: unknown field; did you mean spec.run.env?",
    ]


def test_text_with_colons_stays_text() -> None:
    assert loaded(job("labels: {port: 80:80, at: 1:30.5}")).spec.labels == {"port": "80:80", "at": "1:30.5"}


def test_one_name_for_two_jobs() -> None:
    assert lines(f"{job('')}---\n{job('')}") == ["document 2: metadata.name: must differ from that of document 1"]


def test_a_key_given_twice() -> None:
    assert lines(job("weight: 1, weight: 2, labels: {a: x, a: y}")) == [
        "spec.weight: is given twice",
        "spec.labels.a: is given twice",
    ]
    assert lines(f"{job('')}---\n{job('queue: a, queue: b', name='k')}") == ["document 2: spec.queue: is given twice"]


@pytest.mark.parametrize(
    "text", ["", "# nothing", "a: [", '"x', "\x00", "spec: &a [*a]", "!!python/object:os.system {}", "[" * 10**4]
)
def test_text_that_is_no_job(text: str) -> None:
    assert lines(text)


def test_aliases_cannot_blow_up() -> None:
    levels = ["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))]
    assert lines("\n".join(levels))


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/zero"):
        with pytest.raises(BadInput, match="not a regular file"):
            read_bytes(path, regular=True)
