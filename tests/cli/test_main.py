"""Exit codes, one-line errors, and where output goes."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from levada import __version__
from levada.cli import main as cli
from levada.cli.exit import ExitCode, code_of
from levada.cli.panels import PANELS
from levada.errors import BadInput, Fault, LevadaError, NoServer, NotFound, Refused, did_you_mean, nearest

Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `levada` with these arguments."""
    code = cli.main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ()])
def test_help_goes_to_stdout(capsys: Capture, arguments: tuple[str, ...]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    for heading, verbs in PANELS.items():
        below = out.split(f"{heading}:\n", 1)[1].split("\n\n")[0]
        assert [line.split()[0] for line in below.splitlines()] == list(verbs)


def test_the_help_of_every_verb_is_one_line_of_80_columns(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    groups: list[tuple[str, ...]] = [()]
    while groups:
        group = groups.pop()
        out = run(capsys, *group, "--help")[1]
        listed = [line for line in out.split("and exit.\n", 1)[1].splitlines() if line.startswith("  ")]
        assert [line for line in listed if "..." in line or not line.endswith(".") or len(line) > 80] == []
        for line in listed:
            verb = line.split()[0]
            if "COMMAND [ARGS]" in run(capsys, *group, verb, "--help")[1]:
                groups.append((*group, verb))


def test_every_verb_is_in_a_panel_and_in_the_documentation_below_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    hidden = {"create", "ps", "queue", "delete", "sinfo"}
    assert {verb for verbs in cli.VERBS.values() for verb in verbs} - hidden == {
        verb for verbs in PANELS.values() for verb in verbs
    }
    for heading, verbs in PANELS.items():
        below = page.split(f"| **{heading}** |", 1)[1].split("| **")[0]
        assert [verb for verb in verbs if f"`{verb}" not in below] == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("plicy",), "did you mean policy?"),
        (("policy", "lss"), "did you mean ls?"),
        (("policy",), "levada policy needs a command: ls, describe, get, set; see levada policy --help"),
        (("policy", "ls", "-o", "xml"), "'xml' is not one of"),
        (("policy", "ls", "-o", "jsn"), "did you mean json?"),
        (("policy", "ls", "--outptu", "json"), "no such option --outptu; did you mean --output?"),
        (("--nonsense",), "no such option --nonsense; see levada --help"),
        (("demo", "--jobs", "many"), "'many' is not a whole number"),
        (("schema",), "levada schema needs one of job, queue, case: kind of file"),
        (("allocate", "case.json"), "levada allocate needs --filename or -f: case file"),
        (("policy", "describe"), "levada policy describe needs name: name or alias of the policy"),
        (("schema", "jb"), "'jb' is not one of 'job', 'queue', 'case'; did you mean job?"),
        (("help", "plicy"), "did you mean policy?"),
        (("version", "more"), "unexpected extra argument"),
        (("zzzzzz",), "levada has no command 'zzzzzz'; see levada --help"),
        (("policy", "describe", "elastic-fif"), "unknown policy 'elastic-fif'; did you mean elastic-fifo?"),
        (("policy", "describe", "zzzzzz"), "unknown policy 'zzzzzz'; see levada policy ls"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(capsys: Capture, arguments: tuple[str, ...], expected: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert expected in err.lower()


def test_help_as_a_word(capsys: Capture) -> None:
    assert run(capsys, "help") == run(capsys, "--help")
    assert run(capsys, "help", "policy", "ls") == run(capsys, "policy", "ls", "--help")


def test_one_way_to_suggest_names() -> None:
    assert nearest("jsn", ["json", "table"]) == ["json"]
    assert nearest("V100", ["v100", "k80"]) == ["v100"]
    assert nearest("zzzz", ["json", "table"]) == []
    assert nearest("x", []) == []
    assert nearest("json" * 10**6, ["json"]) == [], "and that at once"
    assert did_you_mean("tabel", ["json", "table"]) == "; did you mean table?"
    assert did_you_mean("zzzz", ["json"], "see --help") == "; see --help"
    assert did_you_mean("zzzz", ["json"]) == ""


def test_control_characters_of_arguments_are_not_printed(capsys: Capture) -> None:
    _, _, err = run(capsys, "policy", "describe", "x\x1b[31m\ny")
    assert err.count("\n") == 1
    assert "\x1b" not in err


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """`levada fail` raises the first of this list."""
    errors: list[BaseException] = []

    def build(verb: str = "") -> typer.Typer:
        app = typer.Typer()

        @app.command()
        def fail() -> None:
            raise errors[0]

        return app

    monkeypatch.setattr(cli, "build", build)
    return errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LevadaError("broken"), 1),
        (BadInput([Fault("jobs[3].min", "must be at least 1")]), 2),
        (KeyboardInterrupt(), 3),
        (typer.Abort(), 3),
        (NotFound("no such job"), 4),
        (Refused("not yours"), 5),
        (NoServer("no server"), 6),
        (typer.Exit(100), 100),
        (typer.Exit(), 0),
    ],
)
def test_exit_codes(failing: list[BaseException], error: BaseException, code: int) -> None:
    failing.append(error)
    assert cli.main([]) == code


class Odd(BaseException):
    """An unexpected error."""


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), SystemExit(7), Odd("no"), GeneratorExit()])
def test_unexpected_error_is_one_line(
    failing: list[BaseException], error: BaseException, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing.append(error)
    code, out, err = run(capsys)
    assert (code, out) == (1, "")
    assert err.startswith(f"levada: internal error ({__file__}, line ")
    assert type(error).__name__ in err
    assert err.count("\n") == 1
    monkeypatch.setenv("LEVADA_DEBUG", "1")
    with pytest.raises(type(error)):
        cli.main([])


def test_each_fault_is_one_line(failing: list[BaseException], capsys: Capture) -> None:
    failing.append(BadInput([Fault("a", "is required"), Fault("b.c", "must be a number"), Fault("", "no jobs")]))
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert err == "a: is required\nb.c: must be a number\nno jobs\n"


def test_a_subclass_has_its_parents_code() -> None:
    class Gone(NotFound):
        pass

    assert code_of(Gone()) is ExitCode.NOT_FOUND


def test_version(capsys: Capture) -> None:
    assert run(capsys, "--version") == (0, f"levada {__version__}\n", "")
    assert run(capsys, "version")[1].startswith(f"levada {__version__} (Python 3.")


def on_terminal(environment: dict[str, str]) -> str:
    """Return the output of `levada policy ls` on a terminal."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", **environment}
    try:
        subprocess.run([sys.executable, "-m", "levada", "policy", "ls"], stdout=slave, env=environment, check=True)
    finally:
        os.close(slave)
    try:
        return os.read(master, 65536).decode()
    finally:
        os.close(master)


def test_colour_only_on_terminals_that_support_it(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in on_terminal({})
    assert "\x1b[" not in on_terminal({"NO_COLOR": "1"})
    assert "\x1b[" not in on_terminal({"TERM": "dumb"})
    assert "\x1b[" not in run(capsys, "policy", "ls")[1]


def test_python_m_levada_equals_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "levada", "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "levada", "policy", "ls"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "levada: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize(("closed", "arguments", "code"), [(">&-", "policy ls", 0), ("2>&-", "nonsense", 2), ("<&- >&- 2>&-", "version", 0)])  # fmt: skip
def test_closed_streams(closed: str, arguments: str, code: int) -> None:
    command = f"exec {sys.executable} -m levada {arguments} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_ascii_terminal() -> None:
    case = '{"policy": "fifo", "cluster": {"gpus": {"v100": 1}}, "jobs": [{"id": "café"}]}'
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}

    def shown(*arguments: str) -> str:
        command = [sys.executable, "-m", "levada", "allocate", "-f", "-", *arguments]
        done = subprocess.run(command, input=case.encode(), capture_output=True, env=environment, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.decode("ascii")

    assert "caf?" in shown()
    assert json.loads(shown("-o", "json"))["allocations"] == {"café": {"v100": 1}}
