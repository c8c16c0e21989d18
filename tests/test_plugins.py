"""Policies by name, by entry point and by file; every way this can go wrong is one line."""

import sys
from pathlib import Path

import pytest

from levada.errors import BadInput
from levada.plugins import find_policy
from levada.policies.table import POLICIES

#: A whole policy, as CONTRIBUTING.md shows it.
SMALLEST_FIRST = '''\
"""Smallest first: as many jobs as possible run, each at its minimum."""

import numpy as np

from levada.core.decision import decision
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Needs


class SmallestFirst:
    name = "smallest-first"
    needs = Needs.NOTHING
    cadence = ON_EVENTS
    guards = ALL_GUARDS

    def initial(self, seed):
        return None  # it remembers nothing

    def decide(self, snap, perf, state):
        jobs, allowed, left = snap.jobs, snap.allowed, snap.capacity.copy()
        need = jobs.min * jobs.unit
        gpu_type, count = np.full(len(jobs), -1), np.zeros(len(jobs), np.int64)
        order = np.argsort(need, kind="stable")  # equal ones stay in the order of submission
        for row in order:
            for kind in np.argsort(snap.preference[row], kind="stable"):
                if allowed[row, kind] and need[row] <= left[kind]:
                    gpu_type[row], count[row] = kind, jobs.min[row]
                    left[kind] -= need[row]
                    break
        rank = np.empty(len(jobs), np.int64)
        rank[order] = np.arange(len(jobs))
        return decision(snap, gpu_type, count, rank=rank), state
'''


def test_the_example_is_that_of_contributing() -> None:
    page = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"```python\n{SMALLEST_FIRST}```" in page


def refusal(name: str, **options: object) -> str:
    """The one line with which *name* is refused."""
    with pytest.raises(BadInput) as caught:
        find_policy(name, options)
    assert len(caught.value.faults) == 1
    return str(caught.value)


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    path = tmp_path / "smallest.py"
    path.write_text(SMALLEST_FIRST)
    return path


@pytest.mark.parametrize("record", POLICIES, ids=lambda record: record.name)
def test_every_policy_of_the_table_by_all_its_names(record: object) -> None:
    for name in (record.name, *record.aliases):  # type: ignore[attr-defined]
        assert find_policy(name).name == record.name  # type: ignore[attr-defined]


def test_unknown_names_suggest_the_nearest() -> None:
    assert refusal("elastic-fif") == "unknown policy 'elastic-fif'; did you mean elastic-fifo?"
    assert refusal("zzzzzz") == "unknown policy 'zzzzzz'; see levada policy ls"
    assert refusal("") == "unknown policy ''; see levada policy ls"


def test_class_in_a_file(policy_file: Path) -> None:
    policy = find_policy(f"{policy_file}:SmallestFirst")
    assert policy.name == "smallest-first"
    assert policy.initial(0) is None
    assert [path.name for path in policy_file.parent.iterdir()] == ["smallest.py"], "nothing is left beside the file"


def test_an_edited_file_counts_at_once(policy_file: Path) -> None:
    find_policy(f"{policy_file}:SmallestFirst")
    policy_file.write_text(SMALLEST_FIRST.replace('"smallest-first"', '"smaller-first!"'))
    assert find_policy(f"{policy_file}:SmallestFirst").name == "smaller-first!"


def test_file_that_is_not_there(tmp_path: Path) -> None:
    assert refusal(f"{tmp_path}/none.py:Mine") == f"{tmp_path}/none.py: No such file or directory"


def test_directory_in_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "dir.py").mkdir()
    assert refusal(f"{tmp_path}/dir.py:Mine") == f"{tmp_path}/dir.py: Is a directory"


def test_class_that_is_not_in_the_file(policy_file: Path) -> None:
    assert refusal(f"{policy_file}:Largest") == f"{policy_file}: there is no 'Largest' in it; it has SmallestFirst"
    assert refusal(f"{policy_file}:") == f"{policy_file}: there is no '' in it; it has SmallestFirst"
    meant = f"{policy_file}: there is no 'SmalestFirst' in it; did you mean SmallestFirst?"
    assert refusal(f"{policy_file}:SmalestFirst") == meant
    policy_file.write_text("")
    assert refusal(f"{policy_file}:Mine") == f"{policy_file}: there is no 'Mine' in it"


def test_file_without_a_class(policy_file: Path) -> None:
    assert refusal(str(policy_file)) == f"{policy_file}: say which class of it, as in {policy_file}:SmallestFirst"
    policy_file.write_text("")
    assert refusal(str(policy_file)) == f"{policy_file}: say which class of it, as in {policy_file}:Mine"


def test_path_with_a_null_byte() -> None:
    assert refusal("my\0file.py:Mine") == "my\0file.py: embedded null byte"


def test_name_in_the_file_that_is_no_class(policy_file: Path) -> None:
    assert refusal(f"{policy_file}:np") == f"{policy_file}:np is not a class"


@pytest.mark.parametrize(
    ("source", "line", "what"),
    [
        ("import numpy\n\nimport no_such_module_here\n", 3, "ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("class Mine:\n    name = 'x'\n  needs = 1\n", 3, "IndentationError"),
        ("x = 1\ny = x / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(0)\n", 2, "SystemExit: 0"),
        ("def f():\n    return 1\n\n\nraise KeyError\n", 5, "KeyError"),
        ("class Odd(BaseException):\n    pass\n\n\nraise Odd('no')\n", 5, "Odd: no"),
        ("raise GeneratorExit\n", 1, "GeneratorExit"),
    ],
)  # fmt: skip
def test_fault_in_the_file_names_its_line(tmp_path: Path, source: str, line: int, what: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    text = refusal(f"{path}:Mine")
    assert text.startswith(f"{path}, line {line}: {what}")


def test_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_bytes(b"\xff\xfe\x00")
    assert refusal(f"{path}:Mine").startswith(str(path))


@pytest.mark.parametrize("lacks", ["name", "needs", "cadence", "guards", "initial", "decide"])
def test_class_that_is_no_policy(policy_file: Path, lacks: str) -> None:
    source = SMALLEST_FIRST.replace(f"    {lacks} = ", f"    not_{lacks} = ").replace(
        f"def {lacks}(", f"def not_{lacks}("
    )
    policy_file.write_text(source)
    name = f"{policy_file}:SmallestFirst"
    assert refusal(name) == f"{name} is not a policy: it lacks {lacks}"


def test_field_of_a_wrong_type_is_named_with_what_it_should_be(policy_file: Path) -> None:
    policy_file.write_text(SMALLEST_FIRST.replace("Needs.NOTHING", "'NOTHING'"))
    assert refusal(f"{policy_file}:SmallestFirst").endswith(
        "is not a policy: its needs must be Needs, as Needs.NOTHING is, not 'NOTHING'"
    )


def test_options_of_a_class(policy_file: Path) -> None:
    source = SMALLEST_FIRST.replace(
        "    def initial", "    def __init__(self, limit=3):\n        self.limit = 12 // limit\n\n    def initial"
    )
    policy_file.write_text(source)
    name = f"{policy_file}:SmallestFirst"
    assert find_policy(name, {"limit": 4}).limit == 3  # type: ignore[attr-defined]
    assert refusal(name, limits=4) == "options.limits: unknown option; did you mean limit?"
    assert refusal(name, zzz=4) == f"options.zzz: unknown option; {name} has the options limit"
    assert refusal(name, limit=0).startswith(f"{name} cannot be made: ZeroDivisionError")
    policy_file.write_text(source.replace("12 // limit", "exit(limit)"))
    assert refusal(name, limit=0) == f"{name} cannot be made: SystemExit: 0"
    policy_file.write_text(source.replace("limit=3", "limit"))
    assert refusal(name) == f"options.limit: {name} needs it"
    policy_file.write_text(source.replace("limit=3", "limit=3, **others"))
    assert find_policy(name, {"anything": 1}).name == "smallest-first"


def test_options_of_a_policy_of_the_table() -> None:
    assert refusal("tiresias", queue_limt=3) == "options.queue_limt: unknown option; did you mean queue_limit?"
    assert refusal("fifo", queue_limit=3) == "options.queue_limit: unknown option; fifo has no options"


def test_class_without_options_takes_none(policy_file: Path) -> None:
    name = f"{policy_file}:SmallestFirst"
    assert refusal(name, limit=4) == f"options.limit: unknown option; {name} has no options"


def test_policy_of_an_installed_package(policy_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = policy_file.parent
    package = site / "smallest-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: smallest\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[levada.policies]\nsmallest = smallest:SmallestFirst\nbroken = smallest_gone:Mine\nodd = smallest:np\n"
    )
    monkeypatch.syspath_prepend(str(site))
    try:
        assert find_policy("smallest").name == "smallest-first"
        assert refusal("broken") == (
            "broken: smallest_gone:Mine cannot be loaded: ModuleNotFoundError: No module named 'smallest_gone'"
        )
        assert refusal("odd") == "odd is not a class"
    finally:
        sys.modules.pop("smallest", None)
