"""Policies by name, entry point and file; every error is one line."""

import sys
from pathlib import Path

import pytest

from levada.errors import BadInput
from levada.plugins import find_policy
from levada.policies.catalog import POLICIES

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


def test_contributing_shows_this_policy() -> None:
    page = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"```python\n{SMALLEST_FIRST}```" in page


def error_of(name: str, **options: object) -> str:
    """The one-line error of `find_policy(name)`."""
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
def test_every_built_in_policy_is_found_by_name_and_alias(record: object) -> None:
    for name in (record.name, *record.aliases):  # type: ignore[attr-defined]
        assert find_policy(name).name == record.name  # type: ignore[attr-defined]


def test_unknown_names_suggest_the_nearest_name() -> None:
    assert error_of("elastic-fif") == "unknown policy 'elastic-fif'; did you mean elastic-fifo?"
    assert error_of("zzzzzz") == "unknown policy 'zzzzzz'; see levada policy ls"
    assert error_of("") == "unknown policy ''; see levada policy ls"


def test_a_class_in_a_file_is_loaded(policy_file: Path) -> None:
    policy = find_policy(f"{policy_file}:SmallestFirst")
    assert policy.name == "smallest-first"
    assert policy.initial(0) is None
    assert [path.name for path in policy_file.parent.iterdir()] == ["smallest.py"], "no other file is created"


def test_an_edited_file_is_reloaded(policy_file: Path) -> None:
    find_policy(f"{policy_file}:SmallestFirst")
    policy_file.write_text(SMALLEST_FIRST.replace('"smallest-first"', '"smaller-first!"'))
    assert find_policy(f"{policy_file}:SmallestFirst").name == "smaller-first!"


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    assert error_of(f"{tmp_path}/none.py:Mine") == f"{tmp_path}/none.py: No such file or directory"


def test_a_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "dir.py").mkdir()
    assert error_of(f"{tmp_path}/dir.py:Mine") == f"{tmp_path}/dir.py: Is a directory"


def test_a_missing_class_is_reported_with_suggestions(policy_file: Path) -> None:
    assert error_of(f"{policy_file}:Largest") == f"{policy_file}: no class 'Largest'; it has SmallestFirst"
    assert error_of(f"{policy_file}:") == f"{policy_file}: no class ''; it has SmallestFirst"
    expected = f"{policy_file}: no class 'SmalestFirst'; did you mean SmallestFirst?"
    assert error_of(f"{policy_file}:SmalestFirst") == expected
    policy_file.write_text("")
    assert error_of(f"{policy_file}:Mine") == f"{policy_file}: no class 'Mine'"


def test_a_path_without_a_class_is_reported(policy_file: Path) -> None:
    assert error_of(str(policy_file)) == f"{policy_file}: add the name of the class, e.g. {policy_file}:SmallestFirst"
    policy_file.write_text("")
    assert error_of(str(policy_file)) == f"{policy_file}: add the name of the class, e.g. {policy_file}:Mine"


def test_a_path_with_a_null_byte_is_reported() -> None:
    assert error_of("my\0file.py:Mine") == "my\0file.py: embedded null byte"


def test_a_name_that_is_not_a_class_is_reported(policy_file: Path) -> None:
    assert error_of(f"{policy_file}:np") == f"{policy_file}:np is not a class"


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
def test_an_error_in_the_file_is_reported_with_its_line(tmp_path: Path, source: str, line: int, what: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    text = error_of(f"{path}:Mine")
    assert text.startswith(f"{path}, line {line}: {what}")


def test_a_binary_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_bytes(b"\xff\xfe\x00")
    assert error_of(f"{path}:Mine").startswith(str(path))


@pytest.mark.parametrize("missing", ["name", "needs", "cadence", "guards", "initial", "decide"])
def test_a_class_without_a_policy_member_is_reported(policy_file: Path, missing: str) -> None:
    source = SMALLEST_FIRST.replace(f"    {missing} = ", f"    not_{missing} = ").replace(
        f"def {missing}(", f"def not_{missing}("
    )
    policy_file.write_text(source)
    name = f"{policy_file}:SmallestFirst"
    assert error_of(name) == f"{name} is not a policy: missing {missing}"


def test_a_member_of_a_wrong_type_is_reported_with_an_example(policy_file: Path) -> None:
    policy_file.write_text(SMALLEST_FIRST.replace("Needs.NOTHING", "'NOTHING'"))
    assert error_of(f"{policy_file}:SmallestFirst").endswith(
        "is not a policy: its needs must be Needs, e.g. Needs.NOTHING, not 'NOTHING'"
    )


def test_options_are_passed_to_a_class(policy_file: Path) -> None:
    source = SMALLEST_FIRST.replace(
        "    def initial", "    def __init__(self, limit=3):\n        self.limit = 12 // limit\n\n    def initial"
    )
    policy_file.write_text(source)
    name = f"{policy_file}:SmallestFirst"
    assert find_policy(name, {"limit": 4}).limit == 3  # type: ignore[attr-defined]
    assert error_of(name, limits=4) == "options.limits: unknown option; did you mean limit?"
    assert error_of(name, zzz=4) == f"options.zzz: unknown option; {name} has the options limit"
    assert error_of(name, limit=0).startswith(f"{name} cannot be created: ZeroDivisionError")
    policy_file.write_text(source.replace("12 // limit", "exit(limit)"))
    assert error_of(name, limit=0) == f"{name} cannot be created: SystemExit: 0"
    policy_file.write_text(source.replace("limit=3", "limit"))
    assert error_of(name) == f"options.limit: required by {name}"
    policy_file.write_text(source.replace("limit=3", "limit=3, **others"))
    assert find_policy(name, {"anything": 1}).name == "smallest-first"


def test_unknown_options_of_a_built_in_policy_are_reported() -> None:
    assert error_of("tiresias", queue_limt=3) == "options.queue_limt: unknown option; did you mean queue_limit?"
    assert error_of("fifo", queue_limit=3) == "options.queue_limit: unknown option; fifo has no options"


def test_options_of_a_class_without_options_are_reported(policy_file: Path) -> None:
    name = f"{policy_file}:SmallestFirst"
    assert error_of(name, limit=4) == f"options.limit: unknown option; {name} has no options"


def test_a_policy_of_an_installed_package_is_found(policy_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert error_of("broken") == (
            "broken: smallest_gone:Mine cannot be loaded: ModuleNotFoundError: No module named 'smallest_gone'"
        )
        assert error_of("odd") == "odd is not a class"
    finally:
        sys.modules.pop("smallest", None)
