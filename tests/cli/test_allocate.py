"""`levada allocate`: the golden cases, the documented example, and one-line errors with exit code 2."""

import copy
import functools
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.allocate.case_file import Case, CaseJob
from levada.cli import main as cli
from tests.test_plugins import SMALLEST_FIRST

Capture = pytest.CaptureFixture[str]

FOLDER = Path(__file__).parent.parent / "golden"
GOLDEN: list[dict[str, Any]] = json.loads((FOLDER / "voda_algorithms.json").read_text())
DRAGON: list[dict[str, Any]] = json.loads((FOLDER / "dragon_cases.json").read_text())["cases"]

#: The example of the documentation, unchanged.
EXAMPLE = """
{"policy": "elastic-tiresias", "options": {}, "now": 1000.0, "cluster": {"gpus": {"v100": 8}},
 "jobs": [{"id": "A", "submitted": 1, "min": 2, "max": 4, "desired": 2, "priority": 0, "weight": 1.0, "gpu_types": ["v100"], "scale_factor": 1,
   "first_started": null, "remaining_s": 0.0, "speedup": {"1": 1.0, "2": 2.0}, "throughput": {"v100": 3.5}, "steps_left": 1000,
   "elapsed_s": 10.0, "deadline_s": null, "entity": null}]}
"""

SMALL = {"policy": "elastic-fifo", "cluster": {"gpus": {"v100": 8}}, "jobs": [{"id": "A", "min": 1, "max": 3}]}


class Levada:
    """The command, with a folder for its files."""

    def __init__(self, folder: Path, capsys: Capture) -> None:
        self.folder, self._capsys = folder, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        code = cli.main(["allocate", *arguments])
        out, err = self._capsys.readouterr()
        return code, out, err

    def file(self, content: str | bytes, name: str = "case.json") -> str:
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def answer(self, case: dict[str, Any], *arguments: str) -> dict[str, Any]:
        """Return the answer to a valid case."""
        code, out, err = self("-f", self.file(json.dumps(case)), "-o", "json", *arguments)
        assert (code, err) == (0, "")
        answered: dict[str, Any] = json.loads(out)
        return answered

    def faults(self, content: str | bytes | dict[str, Any], *arguments: str, name: str = "case.json") -> list[str]:
        """Return the error lines of an invalid case."""
        text = json.dumps(content) if isinstance(content, dict) else content
        return self.refused("-f", self.file(text, name), *arguments)

    def refused(self, *arguments: str) -> list[str]:
        code, out, err = self(*arguments)
        assert (code, out) == (2, "")
        assert "Traceback" not in err
        assert err.endswith("\n")
        return err.splitlines()


@pytest.fixture
def levada(tmp_path: Path, capsys: Capture) -> Levada:
    return Levada(tmp_path, capsys)


# -------------------------------------------------------------------------------------------------------- good cases


def converted(golden: dict[str, Any]) -> dict[str, Any]:
    """A golden case of Voda in the format of Levada."""
    names = {
        "name": "id", "submit_time": "submitted", "num_proc": "desired", "min_num_proc": "min", "max_num_proc": "max",
        "first_start_time": "first_started", "remaining_time_sec": "remaining_s",
    }  # fmt: skip
    jobs = [{names.get(key, key): value for key, value in job.items()} for job in golden["jobs"]]
    return {"policy": golden["algorithm"], "cluster": {"gpus": {"gpu": golden["total_gpus"]}}, "jobs": jobs}


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: str(golden["id"]))
def test_golden_case_of_voda(levada: Levada, golden: dict[str, Any]) -> None:
    answer = levada.answer(converted(golden))
    sizes = {name: allocation.get("gpu", 0) for name, allocation in answer["allocations"].items()}
    assert sizes == {job["name"]: golden["expected"].get(job["name"], 0) for job in golden["jobs"]}


@pytest.mark.parametrize("case", DRAGON, ids=lambda case: str(case["id"]))
def test_dragon_case_is_accepted_unchanged(levada: Levada, case: dict[str, Any]) -> None:
    answer = levada.answer({**case, "policy": "dragon-compat"})
    assert answer["policy"] == "dragon-compat"
    crashed = any(outcome.get("crash") for outcome in case["expected"]["outcomes"])
    assert crashed or answer["outcome"] in case["expected"]["outcomes"]
    assert set(levada.answer({**case, "policy": "dragon"})) == {"policy", "outcome", "reasons"}


@pytest.mark.parametrize("policy", ["dragon", "dragon-compat"])
def test_dragon_accepts_a_standard_case(levada: Levada, policy: str) -> None:
    nodes = [{"name": "n1", "gpus": {"v100": 4}, "cpu": 16, "memory": "64Gi"}]
    jobs = [{"id": "A", "min": 1, "max": 4, "running": {"v100": 3}}, {"id": "B", "submitted": 5, "min": 1}]
    for cluster in ({"gpus": {"v100": 4}}, {"nodes": nodes}):
        answer = levada.answer({"policy": policy, "now": 10.0, "cluster": cluster, "jobs": jobs})
        assert answer["policy"] == policy
        assert answer["allocations"] == {"A": {"v100": 3}, "B": {"v100": 1}}


def test_documented_example(levada: Levada) -> None:
    code, out, err = levada("-f", levada.file(EXAMPLE), "-o", "json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["policy"] == "elastic-tiresias"
    assert answer["allocations"] == {"A": {"v100": 2}}
    assert answer["reasons"] == {"A": {"code": "runs", "text": "Has 2 of at most 4 workers; 6 of 8 v100 GPUs are left, and elastic-tiresias gives it no more."}}  # fmt: skip


def test_output_is_deterministic(levada: Levada) -> None:
    jobs = [{"id": f"j{i}", "min": 1, "max": 5, "remaining_s": i % 3, "speedup": {"1": 1, "5": 3}} for i in range(40)]
    for policy in ("elastic-fifo", "elastic-srjf", "elastic-tiresias", "ffdl", "afs-l"):
        file = levada.file(json.dumps({**SMALL, "policy": policy, "jobs": jobs}))
        assert levada("-f", file, "-o", "json") == levada("-f", file, "-o", "json")


def test_standard_input(levada: Levada, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (json.dumps(SMALL), "policy: fifo\ncluster: {gpus: {v100: 8}}\njobs: [{id: A, min: 3}]\n"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        code, out, err = levada("-f", "-", "-o", "json")
        assert (code, err) == (0, "")
        assert json.loads(out)["allocations"] == {"A": {"v100": 3}}


@pytest.mark.parametrize("text", ["policy: fifo\ncluster: {gpus: {v100: 8}}\njobs:\n- id: A\n", "{policy: fifo, cluster: {gpus: {v100: 8}}, jobs: [{id: A}]}"])  # fmt: skip
def test_yaml_is_recognized_by_extension(levada: Levada, text: str) -> None:
    for name in ("case.yaml", "case.yml"):
        code, out, _ = levada("-f", levada.file(text, name), "-o", "json")
        assert (code, json.loads(out)["allocations"]) == (0, {"A": {"v100": 1}})
    assert "case.json: not JSON: " in levada.faults(text)[0]


def test_policy_option_overrides_the_case(levada: Levada) -> None:
    assert levada.answer(SMALL)["allocations"] == {"A": {"v100": 3}}
    assert levada.answer(SMALL, "--policy", "FIFO")["allocations"] == {"A": {"v100": 1}}
    unnamed = {key: value for key, value in SMALL.items() if key != "policy"}
    assert levada.answer(unnamed, "--policy", "fifo")["policy"] == "fifo"


def test_policy_of_a_file(levada: Levada) -> None:
    path = levada.file(SMALLEST_FIRST, "smallest.py")
    jobs = [{"id": "wide", "min": 7}, {"id": "narrow", "min": 2, "submitted": 9}]
    case = {**SMALL, "jobs": jobs, "policy": f"{path}:SmallestFirst"}
    for answer in (levada.answer(case), levada.answer({**case, "policy": "fifo"}, "--policy", f"{path}:SmallestFirst")):
        assert answer["policy"] == "smallest-first"
        assert answer["allocations"] == {"wide": {}, "narrow": {"v100": 2}}


def test_policy_of_a_file_that_fails_is_one_line(levada: Levada) -> None:
    path = levada.file(SMALLEST_FIRST.replace("need = jobs.min * jobs.unit", "need = 1 / 0"), "smallest.py")
    code, out, err = levada("-f", levada.file(json.dumps(SMALL)), "--policy", f"{path}:SmallestFirst")
    assert (code, out) == (1, "")
    assert err == f"levada: smallest-first failed ({path}, line 20): ZeroDivisionError: division by zero\n"


RETURN = "return decision(snap, gpu_type, count, rank=rank), state"


def test_prints_of_a_policy_are_kept_out_of_stdout(levada: Levada) -> None:
    source = "print('loading')\n" + SMALLEST_FIRST.replace(RETURN, f"print('hello'); {RETURN}")
    path = levada.file(source.replace("return None  #", "print('begins')  #"), "mine.py")
    code, out, err = levada("-f", levada.file(json.dumps(SMALL)), "--policy", f"{path}:SmallestFirst", "-o", "json")
    assert code == 0
    assert json.loads(out)["allocations"] == {"A": {"v100": 1}}
    assert err.split() == ["loading", "begins", "hello"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("raise SystemExit(0)", "smallest-first failed ({path}, line 31): SystemExit: 0"),
        ("raise GeneratorExit", "smallest-first failed ({path}, line 31): GeneratorExit"),
        ("return None", "the policy smallest-first must return a decision and a state, not None"),
        ("return decision(snap, gpu_type, count * np.nan), state",
         "the policy smallest-first returned count as float64; must be whole numbers (np.int64)"),
    ],
)  # fmt: skip
def test_policy_error_is_one_line_and_code_1(levada: Levada, change: str, line: str) -> None:
    path = levada.file(SMALLEST_FIRST.replace(RETURN, change), "mine.py")
    code, out, err = levada("-f", levada.file(json.dumps(SMALL)), "--policy", f"{path}:SmallestFirst")
    assert (code, out, err) == (1, "", f"levada: {line.format(path=path)}\n")


def test_options_reach_the_policy(levada: Levada) -> None:
    # 11 jobs are pending, more than 10: the second queue shrinks; with a higher threshold it does not.
    wide = {"id": "X", "min": 2, "max": 8, "desired": 8, "priority": 1, "first_started": 1, "speedup": {"1": 1, "8": 2}}
    waiting = [{"id": f"P{i}", "min": 2, "max": 2, "speedup": {"1": 1.0, "2": 2.0}, "priority": 1} for i in range(11)]
    case = {**SMALL, "policy": "elastic-tiresias", "jobs": [wide, *waiting]}
    assert levada.answer(case)["allocations"]["X"] == {"v100": 2}
    strict = {**case, "options": {"compaction_threshold": 20}}
    assert levada.answer(strict)["allocations"]["X"] == {"v100": 8}


def test_table(levada: Levada) -> None:
    jobs = [{"id": "A", "min": 1, "max": 3}, {"id": "B\x1b[31m", "min": 8}]
    file = levada.file(json.dumps({**SMALL, "jobs": jobs}))
    code, out, err = levada("-f", file, "-o", "table")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["JOB", "WORKERS", "TYPE"],
        ["A", "3", "v100"],
        ["B\ufffd[31m", "0", "-"],
    ]
    assert lines[1].endswith("Has 3 workers, the most that it may have.")
    assert lines[2].endswith("Needs 8 GPUs; 5 v100 left.")
    assert levada("-f", file)[1] == out, "a table unless asked otherwise"


def test_ten_thousand_jobs(levada: Levada) -> None:
    jobs = [{"id": f"j{i}", "submitted": i, "min": 1, "max": 8} for i in range(10_000)]
    answer = levada.answer({"policy": "elastic-fifo", "cluster": {"gpus": {"v100": 30_000}}, "jobs": jobs})
    assert sum(allocation["v100"] for allocation in answer["allocations"].values()) == 30_000


def test_start_up_is_light(tmp_path: Path) -> None:
    probe = """
import sys
from levada.cli.main import main
code = main(sys.argv[1:])
heavy = [name for name in ("numba", "scipy", "rich", "highspy", "asyncio") if name in sys.modules]
sys.exit("heavy imports: " + ", ".join(heavy) if heavy else code)
"""
    (tmp_path / "case.json").write_text(json.dumps(SMALL))
    command = [sys.executable, "-c", probe, "allocate", "-f", str(tmp_path / "case.json"), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["allocations"] == {"A": {"v100": 3}}


# --------------------------------------------------------------------------------------------------------- bad cases


def test_files_that_cannot_be_read(levada: Levada) -> None:
    folder = str(levada.folder)
    assert levada.refused("-f", f"{folder}/none.json") == [f"{folder}/none.json: No such file or directory"]
    assert levada.refused("-f", folder) == [f"{folder}: Is a directory"]
    file = levada.file(json.dumps(SMALL))
    assert levada.refused("-f", file, "--policy", "nul\0l.py:Mine") == ["nul\ufffdl.py: embedded null byte"]
    assert levada.refused("-f", "nul\0l.json") == ["nul\ufffdl.json: embedded null byte"]
    assert levada.refused("-f", "/dev/zero") == ["/dev/zero: is larger than 64 MiB; split it"]
    assert levada.refused("-f", "/dev/null") == ["/dev/null: the file is empty"]
    assert len(levada.refused("-f", "x" * 5000)) == 1
    assert len(levada.refused()) == 1


def test_case_from_a_named_pipe(levada: Levada) -> None:
    pipe = str(levada.folder / "pipe")
    os.mkfifo(pipe)
    writer = Thread(target=Path(pipe).write_text, args=(json.dumps(SMALL),))
    writer.start()
    code, out, err = levada("-f", pipe)
    writer.join()
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split()[:3] == ["A", "3", "v100"]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "case.json: the file is empty"),
        (" \n\t", "case.json: the file is empty"),
        (b'{"policy": "\xff"}', "case.json: invalid UTF-8 at byte 12; save the file as UTF-8"),
        ('{"policy":\n fifo}', "case.json: not JSON: Expecting value in line 2, column 2"),
        ('{"jobs": [}', "case.json: not JSON: Expecting value in line 1, column 11"),
        ("{}{}", "case.json: not JSON: Extra data in line 1, column 3"),
        ("[]", "case.json: must be a mapping with the fields of a case; see docs/allocate.md"),
        ("3", "case.json: must be a mapping with the fields of a case; see docs/allocate.md"),
        ('{"now": NaN}', "case.json: not JSON: NaN is not valid JSON"),
        ('{"now": -Infinity}', "case.json: not JSON: -Infinity is not valid JSON"),
        ('{"now": 1, "now": 2}', "now: is given twice"),
        ('{"jobs": [{"id": "A", "id": "B"}]}', "jobs[0].id: is given twice"),
        ('{"a":' * 100_000, "case.json: not JSON: nested too deeply"),
        ("[" * 100_000, "case.json: not JSON: nested too deeply"),
    ],
)
def test_invalid_json(levada: Levada, content: str | bytes, line: str) -> None:
    (said,) = levada.faults(content)
    assert said.endswith(line)


def test_invalid_yaml(levada: Levada) -> None:
    for content in ("a: [", "- 1", "a: 1\n---\nb: 2", "\x00", "a: &a [*a]", "[" * 10_000, "jobs: &j [{id: *j}]"):
        assert levada.faults(content, name="case.yaml")


def aliases(first: str, following: str, count: int) -> str:
    """YAML in which each line references the previous one 9 times."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{i}: &a{i} " + following.replace("...", ", ".join([f"*a{i - 1}"] * 9)) for i in range(1, count)]
    return "\n".join([*lines, "policy: fifo", "cluster: {gpus: {v100: 8}}", "jobs: [{id: A}]", ""])


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (aliases("[x, x]", "[...]", 12), "has more than 1,000,000 keys and values, counting each alias as often as it is used"),
        (aliases("{k: 1}", "{<<: [...]}", 12), "has more than 1,000,000 keys and values, counting each alias as often as it is used"),
        ("now: &n [*n]\n", "not YAML: a value contains itself"),
        ("now: 0x" + "f" * 30_000, "not YAML: a number of more than 1000 digits in line 1"),
        ("# " + "x" * 2**21, "YAML of more than 2 MiB; use JSON, or split it"),
    ],
    ids=["aliases", "merge keys", "itself", "hexadecimal", "large"],
)  # fmt: skip
def test_yaml_alias_expansion_is_limited(levada: Levada, content: str, line: str) -> None:
    assert levada.faults(content, name="case.yaml") == [f"{levada.folder / 'case.yaml'}: {line}"]


def test_yaml_aliases_are_allowed(levada: Levada) -> None:
    text = "policy: fifo\ncluster: {gpus: {v100: 8}}\njobs:\n- &a {id: A, min: 2}\n- {<<: *a, id: B}\n"
    code, out, _ = levada("-f", levada.file(text, "case.yaml"), "-o", "json")
    assert (code, json.loads(out)["allocations"]) == (0, {"A": {"v100": 2}, "B": {"v100": 2}})


def test_number_with_too_many_digits(levada: Levada) -> None:
    (said,) = levada.faults('{"now": 1%s}' % ("0" * 5000))
    assert said.endswith("case.json: not JSON: a number of more than 1000 digits")
    assert levada.faults({**SMALL, "now": 10**400}) == ["now: must be a number"]
    assert levada.faults(with_job(max=10**400)) == ["jobs[0].max: must be at most 1000000000"]


def test_lone_surrogate(levada: Levada) -> None:
    assert levada.faults(with_job(queue="\ud800")) == ["jobs[0].queue: must not contain an unpaired UTF-16 surrogate"]


def test_list_of_faults_is_truncated(levada: Levada) -> None:
    lines = levada.faults(with_job(**{f"field{i}": 1 for i in range(20_000)}))
    assert len(lines) == 101
    assert lines[-1] == "and 19900 more"


def with_job(**fields: Any) -> dict[str, Any]:
    return {**SMALL, "jobs": [{"id": "A", **fields}]}


@pytest.mark.parametrize(
    ("case", "line"),
    [
        (with_job(min=0), "jobs[0].min: must be at least 1"),
        (with_job(max=10**18), "jobs[0].max: must be at most 1000000000"),
        (with_job(min="2"), "jobs[0].min: must be a whole number"),
        (with_job(min=2, max=4, desired=1), "jobs[0].desired: must be between min (2) and max (4)"),
        (with_job(min=2, max=4, desired=5), "jobs[0].desired: must be between min (2) and max (4)"),
        (with_job(remaining_s=-1), "jobs[0].remaining_s: must be at least 0"),
        (with_job(sumbitted=1), "jobs[0].sumbitted: unknown field; did you mean submitted?"),
        ({**SMALL, "jobs": [{"id": "A"}, {"id": "A"}]}, "jobs[1].id: 'A' is the same as in jobs[0]"),
        ({**SMALL, "jobs": "A"}, "jobs: must be a list"),
        ({**SMALL, "cluster": {"gpus": {"v100": -1}}}, "cluster.gpus.v100: must be at least 0"),
        ({**SMALL, "cluster": {"gpus": {"v100": 10**18}}}, "cluster.gpus.v100: must be at most 1000000000"),
        ({**SMALL, "cluster": {"gpus": {"v100": 10**8}}}, "cluster: has more than 100000 GPUs"),
        (with_job(running={"v10": 1}), "jobs[0].running.v10: the cluster has no such GPU type; did you mean v100?"),
        (with_job(running={"v100": 1}, gpu_types=["k80"]), "jobs[0].running.v100: is not among its gpu_types (k80)"),
        (
            with_job(running={"v100": 1}, throughput={"v100": 0}),
            "jobs[0].running.v100: cannot run there: its throughput is 0",
        ),
        (
            {**with_job(queue="prd"), "queues": {"prod": {}}},
            "jobs[0].queue: 'prd' is not among queues; did you mean prod?",
        ),
        (
            {**SMALL, "queues": {"prod": {}, "lab": {"parent": "prd"}}},
            "queues.lab.parent: 'prd' is not among queues; did you mean prod?",
        ),
        (
            {**SMALL, "policy": "tiresias", "options": {"queue_limt": 1}},
            "options.queue_limt: unknown option; did you mean queue_limit?",
        ),
        (
            {"policy": "dragon", "mode": "nvidia", "now": 0, "nodes": [], "options": {"idle": 1}},
            "options.idle: unknown option; did you mean idle_s?",
        ),
        ({**SMALL, "polcy": "fifo"}, "polcy: unknown field; did you mean policy?"),
        ({**SMALL, "policy": "elastic-fif"}, "unknown policy 'elastic-fif'; did you mean elastic-fifo?"),
        ({**SMALL, "policy": None}, "policy: is required"),
        ({**SMALL, "policy": 3}, "policy: must be text (put it in quotes)"),
        ({**SMALL, "policy": "srjf"}, "jobs[0].remaining_s: required by srjf"),
        (
            {"policy": "fifo", "mode": "nvidia", "now": 0, "nodes": []},
            "policy: does not support cases with pods and nodes; use dragon or dragon-compat",
        ),
        ({**SMALL, "options": {"seed": -1}}, "options.seed: must be a whole number, 0 or more"),
        ({**SMALL, "options": {"seed": "x"}}, "options.seed: must be a whole number, 0 or more"),
    ],
)
def test_each_fault_is_one_line(levada: Levada, case: dict[str, Any], line: str) -> None:
    assert levada.faults(case) == [line]
    assert levada.faults(case, "-o", "json") == [line]


def test_unknown_gpu_type_has_a_suggestion(levada: Levada) -> None:
    said = levada.answer(with_job(gpu_types=["v10O"]))["reasons"]["A"]
    assert said == {"code": "unknown-type", "text": "Can never start: no node has a GPU of a type that it allows; did you mean v100?"}  # fmt: skip
    said = levada.answer(with_job(gpu_types=["tpu"]))["reasons"]["A"]
    assert said["text"] == "Can never start: no node has a GPU of a type that it allows; it has v100."


def test_all_faults_at_once(levada: Levada) -> None:
    jobs = [{"id": "A", "min": 0}, {"id": "B", "weight": -1, "mxa": 2}, {"id": "C"}]
    assert levada.faults({**SMALL, "jobs": jobs}) == [
        "jobs[0].min: must be at least 1",
        "jobs[1].weight: must be above 0",
        "jobs[1].mxa: unknown field; did you mean max?",
    ]
    plain = [{"id": "A"}, {"id": "B", "remaining_s": 3}, {"id": "C"}]
    assert levada.faults({**SMALL, "policy": "ElasticSRJF", "jobs": plain}) == [
        "jobs[0].remaining_s: required by elastic-srjf",
        "jobs[2].remaining_s: required by elastic-srjf",
    ]


def many(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"id": f"j{i}", **fields} for i in range(count)]


CURVE_OF_TWO = {"1": 1, "9": 5}


@pytest.mark.parametrize(
    ("case", "line"),
    [
        ({"cluster": {"gpus": {"v100": 10**6}}}, "cluster: has more than 100000 GPUs"),
        ({"cluster": {"gpus": {f"t{i}": 1 for i in range(300)}}}, "cluster.gpus: must have at most 256 items"),
        ({"jobs": [{"id": f"j{i}", "gpu_types": [f"t{i}"]} for i in range(300)]}, "has more than 256 GPU types"),
        ({"jobs": [{"id": f"j{i}", "throughput": {f"kind{i}": 1}} for i in range(300)]}, "has more than 256 GPU types"),
        ({"queues": {f"q{i}": {} for i in range(10_000)}}, "queues: has more than 1000 queues"),
        ({"queues": {f"q{i}": {"parent": f"q{i - 1}"} if i else {} for i in range(200)}}, "queues: has more than 100 levels"),
        ({"jobs": many(1, max=10**6, gpus_per_worker=0)}, "jobs: could have more than 250000 workers in total; lower max"),
        ({"cluster": {"gpus": {"v100": 1000}}, "jobs": many(1, max=10**6, gpus_per_worker=0.001)}, "jobs: could have more than 250000 workers in total; lower max"),
        ({"policy": "elastic-tiresias", "cluster": {"gpus": {"v100": 10**5}}, "jobs": many(3001, max=10**5, speedup=CURVE_OF_TWO)},
         "jobs: jobs x workers must be at most 300,000,000 for elastic-tiresias; lower max"),
        ({"policy": "dragon", "cluster": {"gpus": {"v100": 9000}}}, "cluster.gpus.v100: dragon decides by node; use nodes of at most 8192 GPUs"),
        ({"policy": "dragon", "cluster": {"nodes": [{"name": "n", "gpus": {"v100": 9000}}]}}, "cluster.nodes[0].gpus: dragon decides by node; use nodes of at most 8192 GPUs"),
    ],
)  # fmt: skip
def test_oversized_cases_are_refused(levada: Levada, case: dict[str, Any], line: str) -> None:
    assert levada.faults({**SMALL, **case}) == [line]


def test_oversized_dragon_cases_are_refused(levada: Levada) -> None:
    node = {"cpu": 10**6, "mem": 10**6, "gpus": 4096, "gpu_mem_mib": 10_000}
    job = {"max": 4096, "worker": {"replicas": 4096, "gpu_request": "0.001", "gpu_mem": "1"}}
    case = {"policy": "dragon", "mode": "kubeshare", "now": 0, "nodes": [{"name": "n", **node}], "pending": [{"name": f"p{i}", **job} for i in range(200)]}  # fmt: skip
    assert levada.faults(case) == ["nodes: hold more than 500000 fractions of a GPU; request larger ones"]
    nodes = [{"name": f"n{i}", **node} for i in range(30)]
    assert "nodes: have more than 100000 GPUs" in levada.faults({**case, "nodes": nodes})


@pytest.mark.parametrize("policy", ["ffdl", "afs-l", "elastic-tiresias"])
def test_large_cluster_is_accepted(levada: Levada, policy: str) -> None:
    job = {"max": 10**6, "remaining_s": 10, "speedup": {"1": 1, "1000000": 900_000}}
    case = {"policy": policy, "cluster": {"gpus": {"v100": 20_000}}, "jobs": many(3, **job)}
    assert sum(given["v100"] for given in levada.answer(case)["allocations"].values() if given) == 20_000


@pytest.mark.parametrize("options", [{"nonsense": 1}, {"compaction_threshold": "many"}, {"queue_limit": -1}])
def test_unknown_policy_options(levada: Levada, options: dict[str, Any]) -> None:
    assert levada.faults({**SMALL, "policy": "elastic-tiresias", "options": options})


def test_wrong_usage(levada: Levada) -> None:
    assert len(levada.refused("-f", levada.file(json.dumps(SMALL)), "-o", "xml")) == 1


# -------------------------------------------------------------------------------------------------------------- fuzz

NUMBERS = st.integers(-3, 12) | st.sampled_from([0.5, 1e300, -0.0, 10**9, 10**18, 2**63, 1e-9])
GARBAGE = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(["v100", "k80", "cpu", ""])
BY_TYPE = st.dictionaries(TYPES, NUMBERS, max_size=3)
RANGE = st.tuples(st.integers(1, 4), st.integers(0, 6)).map(lambda pair: {"min": pair[0], "max": sum(pair)})
CURVE = st.dictionaries(st.integers(1, 12).map(str), st.floats(0.125, 16), max_size=6)
SENSIBLE = {
    "submitted": st.integers(0, 3),
    "priority": st.integers(-1, 3),
    "step": st.integers(1, 3),
    "gpus_per_worker": st.sampled_from([0, 0.3, 0.5, 1, 2]),
    "cpu": st.sampled_from([0, 1, "500m"]),
    "first_started": st.none() | st.integers(0, 3),
    "gpu_types": st.lists(st.sampled_from(["v100", "k80"]), max_size=2, unique=True),
    "queue": st.sampled_from(["default", "q"]),
    "steps_left": st.floats(0, 1e4),
    "throughput": st.dictionaries(st.sampled_from(["v100", "k80"]), st.floats(0, 9), max_size=2),
    "running": st.dictionaries(st.sampled_from(["v100", "k80", "cpu"]), st.integers(0, 3), max_size=1),
}
ODD = {field: NUMBERS for field in CaseJob.model_fields if field != "id"} | {
    "gpu_types": st.lists(TYPES, max_size=2),
    "running": BY_TYPE,
    "throughput": BY_TYPE,
    "speedup": st.dictionaries(st.integers(0, 12).map(str), NUMBERS, max_size=6),
    "entity": st.sampled_from(["e", None]),
}
JOB = st.builds(
    lambda size, known, more: {**size, **known, **more},
    RANGE,
    st.fixed_dictionaries({"remaining_s": st.integers(0, 9), "speedup": CURVE}),
    st.fixed_dictionaries({}, optional=SENSIBLE) | st.fixed_dictionaries({}, optional=ODD),
)
JOBS = st.lists(JOB, max_size=6).map(lambda jobs: [{"id": f"j{i}", **job} for i, job in enumerate(jobs)])
#: Similar enough to a case to reach policies, and different enough to trigger every error.
CASE = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(["fifo", "elastic-fifo", "srjf", "elastic-srjf", "tiresias", "elastic-tiresias",
                                   "ffdl", "afs-l", "dragon", "dragon-compat"]),
        "cluster": st.fixed_dictionaries({"gpus": st.dictionaries(st.sampled_from(["v100", "k80"]), st.integers(0, 12))}),
        "jobs": JOBS | st.lists(GARBAGE, max_size=3),
    },
    optional={
        "now": NUMBERS,
        "options": st.just({}) | st.dictionaries(st.sampled_from(["seed", "queue_limit", "starvation_s"]), NUMBERS),
        "queues": st.just({"default": {}, "q": {"guaranteed": {"v100": 3}}}) | st.dictionaries(
            st.sampled_from(["default", "q"]),
            st.fixed_dictionaries({}, optional={"guaranteed": BY_TYPE, "limit": BY_TYPE, "weight": NUMBERS}),
        ),
        "state": GARBAGE,
    },
)  # fmt: skip
ANYTHING = GARBAGE | st.dictionaries(st.sampled_from([*Case.model_fields, "mode", "nodes", "pending"]), GARBAGE)


def allocated(content: bytes, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr for a case on standard input."""
    stdin, stdout, stderr = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = io.TextIOWrapper(io.BytesIO(content))
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    try:
        return cli.main(["allocate", "-f", "-", *arguments]), sys.stdout.getvalue(), sys.stderr.getvalue()
    finally:
        sys.stdin, sys.stdout, sys.stderr = stdin, stdout, stderr


@given(CASE | ANYTHING)
def test_random_cases_are_answered_or_refused(case: Any) -> None:
    code, out, err = allocated(json.dumps(case).encode(), "-o", "json")
    assert code in (0, 2), err
    assert (out == "") == (code == 2)
    assert (err == "") == (code == 0)


@given(st.text(max_size=60) | st.binary(max_size=60))
def test_random_bytes_are_refused(content: str | bytes) -> None:
    raw = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    assert allocated(raw)[0] == 2


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return all paths of values in a case."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(path for key, part in inner for path in paths(part, (*here, key)))]


@given(st.data())
def test_mutated_golden_cases_are_answered_or_refused(data: st.DataObject) -> None:
    dragon = [{**case, "policy": policy} for case in DRAGON for policy in ("dragon", "dragon-compat")]
    case = copy.deepcopy(data.draw(st.sampled_from([*map(converted, GOLDEN), *dragon])))
    for _ in range(data.draw(st.integers(1, 3))):
        *above, last = data.draw(st.sampled_from(paths(case)[1:]))
        where = functools.reduce(lambda value, key: value[key], above, case)
        if data.draw(st.booleans()):
            where[last] = data.draw(GARBAGE | NUMBERS)
        else:
            del where[last]
    code, out, err = allocated(json.dumps(case).encode(), "-o", "json")
    assert code in (0, 2), err
    assert (out == "") == (code == 2)
    assert (err == "") == (code == 0)


def test_faults_of_case_and_policy_together(levada: Levada) -> None:
    assert levada.faults({}) == ["cluster: is required", "jobs: is required", "policy: is required"]
    case = {**SMALL, "policy": "tiresias", "options": {"queue_limt": 3}, "jobs": [{"id": "A", "min": 0}]}
    assert levada.faults(case) == [
        "jobs[0].min: must be at least 1",
        "options.queue_limt: unknown option; did you mean queue_limit?",
    ]


def test_dragon_explains_why_no_pod_starts(levada: Levada) -> None:
    case = {
        "policy": "dragon",
        "now": 100.0,
        "nodes": [{"name": "n1", "cpu": 16000, "mem": 65536, "gpus": 2}],
        "pending": [{"name": "large", "min": 4, "max": 4, "worker": {"replicas": 4, "gpu": 1}}],
    }
    code, out, _ = levada("-f", levada.file(json.dumps(case)))
    assert code == 0
    assert "admit              null" in out
    assert out.splitlines()[-1].startswith("large  Can never start: the cluster")
