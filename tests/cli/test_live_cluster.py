"""Verbs for cluster, users and settings against a real server."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import stat
import subprocess
import time
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import typer

from levada.cli import main as cli
from levada.cli.doctor import EXTRAS
from levada.core.events import NodesCordoned
from levada.engine import engine
from levada.server.worker_token import sign
from tests.cli.live_server import Shell, job
from tests.cli.test_live_verbs import FOREVER, levada
from tests.server.http_server import KEY
from tests.timeouts import WAIT_S


def queue(name: str, **spec: object) -> dict[str, object]:
    """A queue in the format of its file."""
    return {"apiVersion": "levada.dev/v1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def test_nodes(shell: Shell) -> None:
    name = shell.submit("resident", FOREVER, gpuTypes=["v100"])
    shell("wait", name, "--for", "Running")
    assert shell("nodes").splitlines()[2].split() == ["node-1", "Ready", "v100=1/2", "-", "-", name]
    assert shell("sinfo", "-o", "name") == "node-0\nnode-1\n"
    assert shell.json("get", "nodes", "node-0")[0]["gpus"] == {"a100": {"total": 2, "used": 0}}
    assert "did you mean node-0 or node-1?" in shell("get", "nodes", "node-2", code=4)
    shell("cancel", name)


def test_drain_cordon_and_uncordon(shell: Shell) -> None:
    name = shell.submit("mover", FOREVER, preemptible=True)
    shell("wait", name, "--for", "Running")
    assert shell.json("get", "job", name)["nodes"] == ["node-0"]
    assert shell("drain", "node-0") == "node-0: Draining\n"
    try:
        shell.until(lambda: shell.json("get", "job", name)["nodes"] == ["node-1"])
        shell.until(lambda: shell.json("get", "node", "node-0")[0]["phase"] == "Drained")
        assert shell("nodes", "--no-headers").split()[:2] == ["node-0", "Drained"]
        assert shell("drain", "node-0") == "node-0: Drained\n"
    finally:
        assert shell("uncordon", "node-0") == "node-0: Ready\n"
    assert shell("cordon", "node-1") == "node-1: Cordoned\n"
    assert shell("uncordon", "node-1") == "node-1: Ready\n"
    assert "there is no node nowhere" in shell("cordon", "nowhere", code=4)
    assert "the node node-1 is connected" in shell("node", "remove", "node-1", code=5)
    assert "there is no node nowhere" in shell("node", "remove", "nowhere", code=4)
    shell("cancel", name)
    shell("wait", name, code=103)


def test_drain_waits_for_jobs_that_are_not_preemptible(shell: Shell) -> None:
    name = shell.submit("stayer", FOREVER, preemptible=False)
    shell("wait", name, "--for", "Running")
    (node,) = shell.json("get", "job", name)["nodes"]
    try:
        code, out, told = shell.try_out("drain", node)
        assert (code, out) == (0, f"{node}: Draining\n")
        assert told.startswith(f"{name} stays for now: it may not be preempted\n")
        assert f"`levada drain --force {node}` stops them now" in told
        assert shell.json("get", "job", name)["phase"] == "Running"
        (view,) = shell.json("get", "nodes", node)
        assert (view["phase"], view["draining"]) == ("Draining", [{"job": name, "why": "it may not be preempted"}])
        (row,) = [line.split() for line in shell("nodes", "--no-headers").splitlines() if line.startswith(node)]
        assert (row[1], row[-1]) == ("Draining", name)
        assert shell("drain", "--force", node) == f"{node}: Draining\n"
        shell.until(lambda: shell.json("get", "job", name)["nodes"] not in ([], [node]))
        reasons = [json.loads(line).get("reason") for line in shell("events", name, "-o", "jsonl").splitlines()]
        assert "drained" in reasons
        assert "preempted" not in reasons
    finally:
        shell("uncordon", node)
        shell("cancel", name)
        shell("wait", name, code=103)


def test_jobs_do_not_get_reserved_gpus(shell: Shell) -> None:
    made = shell.json("reserve", "--gpus", "2", "--gpu-type", "v100", "--for", "3s")
    assert sum(map(len, made["devices"].values())) == 2
    assert "2 GPUs requested" in shell("reserve", "--gpus", "2", "--node", "node-1", "--for", "1h", code=5)
    name = shell.submit("kept-out", "true", gpuTypes=["v100"])
    assert f"timed out after 0.5 s: {name} is not finished; the job continues" in shell(
        "wait", name, "-t", "0.5", code=101
    )
    shell("cancel", name)


def test_queues_are_applied(shell: Shell) -> None:
    path = shell.file(
        "queues.yaml", queue("vision", guaranteed={"a100": 1}), queue("lab", weight=2.0, limit={"v100": 1})
    )
    assert shell("apply", "-f", path) == "queue vision created\nqueue lab created\n"
    assert shell("apply", "-f", path) == "queue vision unchanged\nqueue lab unchanged\n"
    path = shell.file("queues.yaml", queue("lab", weight=3.0))
    assert shell.json("apply", "-f", path) == [{"kind": "queue", "name": "lab", "result": "changed"}]
    rows = {row.split()[0]: row.split() for row in shell("queues", "--no-headers").splitlines()}
    assert rows["vision"][3] == "a100=1"
    one = shell.file("one.yaml", queue("one", perUserLimit=1))
    assert shell("apply", "-f", one) == "queue one created\n"
    assert shell("apply", "-f", one) == "queue one unchanged\n"
    header, *rows_now = (row.split() for row in shell("queues").replace("PER USER", "PER-USER").splitlines())
    assert {row[0]: row[header.index("PER-USER")] for row in rows_now}["one"] == "1"
    first, second = (shell.submit(f"mine-{kind}", FOREVER, gpuTypes=[kind], queue="one") for kind in ("a100", "v100"))
    shell("wait", first, "--for", "Running")
    shell.until(lambda: shell.json("get", "job", second)["reason"]["code"] == "user-limit")
    assert "uses 1 of 1 GPU allowed per user in queue one; the job needs 1." in shell("explain", second)
    shell("cancel", first, second)
    for bad, told in ((-1, "at least 0"), ("3", "a whole number, or GPUs by type"), (True, "a whole number")):
        said = shell("apply", "-f", shell.file("bad.yaml", queue("bad", perUserLimit=bad)), code=2)
        assert said.startswith("spec.perUserLimit")
        assert told in said
        assert len(said.splitlines()) == 1
    path = shell.file("queues.yaml", queue("lab", weight=3.0))
    assert rows["lab"][2:5] == ["3", "-", "-"]
    assert {each["name"] for each in shell.json("get", "queues")} >= {"default", "lab", "vision"}
    assert "levada apply" in shell("submit", "-f", path, code=2)


def test_jobs_are_applied(shell: Shell) -> None:
    path = shell.file("applied.yaml", job("applied", FOREVER))
    (made,) = shell.json("apply", "-f", path)
    assert made["result"] == "created"
    assert shell("apply", "-f", path) == f"job {made['name']} unchanged\n"
    path = shell.file("applied.yaml", job("applied", FOREVER, priority=4, workers={"min": 1, "max": 2}))
    assert shell("apply", "-f", path) == f"job {made['name']} changed\n"
    view = shell.json("get", "job", "applied")
    assert (view["priority"], view["max"]) == (4, 2)
    shell("cancel", "applied")


def test_usage(shell: Shell) -> None:
    shell("wait", shell.submit("used", "sleep 1"))
    (row,) = [each for each in shell.json("usage", "--by", "workload,user") if each["workload"] == "used"]
    assert (row["user"], row["jobs"]) == ("ada", 1)
    assert row["gpu_seconds"] > 0
    assert shell("usage", "--since", "1h").splitlines()[0].split() == ["USER", "JOBS", "GPU", "HOURS", "RAN", "WAITED"]
    assert "user, queue, workload, gpu_type" in shell("usage", "--by", "colour", code=2)


def test_policy_set_and_get(shell: Shell) -> None:
    assert shell("policy", "get") == "elastic-fifo\n"
    try:
        assert shell("policy", "set", "Tiresias").startswith("tiresias")
        assert shell.json("policy", "get")["name"] == "tiresias"
        listed = shell("policy", "ls")
        assert "tiresias (active) " in listed
        assert "elastic-fifo (recommended) " in listed
        assert "did you mean tiresias" in shell("policy", "set", "tiresia", code=2)
        assert "must be NAME=VALUE" in shell("policy", "set", "fifo", "-O", "x", code=2)
    finally:
        shell("policy", "set", "elastic-fifo")


def test_decisions_ls_and_show(shell: Shell) -> None:
    name = shell.submit("decided", FOREVER)
    shell("wait", name, "--for", "Running")
    decided = [each for each in shell.json("decisions", "ls") if name in [one["job"] for one in each["jobs"]]]
    page = shell("decisions", "show", str(decided[0]["revision"]))
    assert page.startswith(f"Decision {decided[0]['revision']} of elastic-fifo")
    assert name in page
    assert "there is no decision 0" in shell("decisions", "show", "0", code=4)
    shell("cancel", name)


def test_snapshot_is_replayed_with_any_policy(shell: Shell) -> None:
    name = shell.submit("replayed", FOREVER, workers={"min": 1, "max": 2})
    shell.until(lambda: shell.json("get", "job", name)["gpus"] == 2)
    assert shell("snapshot", "--out", "state.json") == "state.json\n"
    had, gets = shell("replay", "state.json").splitlines()[1].split()[1:3]
    assert (had, gets) == ("a100=2", "a100=2")
    answer = shell.json("replay", "state.json", "--policy", "fifo")
    assert answer["allocations"][name] == {"a100": 1}
    case = json.loads(shell("replay", "state.json", "--case"))
    Path("case.json").write_text(json.dumps(case))
    assert shell.json("allocate", "-f", "case.json")["allocations"][name] == {"a100": 2}
    Path("other.json").write_text('{"jobs": 3}')
    assert "other.json: not a snapshot of this version" in shell("replay", "other.json", code=2)
    shell("cancel", name)


def test_top_without_a_terminal_prints_once(shell: Shell) -> None:
    name = shell.submit("topped", FOREVER, workers=2)
    shell("wait", name, "--for", "Running")
    page = shell("top")
    assert "Policy elastic-fifo   nodes 2/2 ready" in page
    assert "a100         [####################] 2/2" in page
    assert name in page
    shell("cancel", name)


def test_top_stays_on_a_terminal(shell: Shell) -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
    process = subprocess.Popen(levada("top", "-n", "0.2"), stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    shown, asked = b"", False
    until = time.monotonic() + WAIT_S
    try:
        while process.poll() is None:
            assert time.monotonic() < until
            # Unread output would block the process.
            if select.select([ours], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    shown += os.read(ours, 65536)
            if not asked and b"elastic-fifo" in shown and shown.count(b"a100") > 2:
                process.send_signal(signal.SIGINT)
                asked = True
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert process.returncode == 3


def test_tokens(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    made = shell.json("token", "create", "--role", "viewer", "--expires", "1h")
    with monkeypatch.context() as viewer:
        viewer.setenv("LEVADA_SERVER", shell.up.url)
        viewer.setenv("LEVADA_TOKEN", made["token"])
        shell("ls")
        path = shell.file("not.yaml", job("not"))
        assert "user" in shell("submit", "-f", path, code=5)
    listed = {row.split()[0]: row for row in shell("token", "ls").splitlines()}
    assert made["id"] in listed
    assert made["token"] not in "".join(listed.values())
    assert shell("token", "revoke", made["id"]) == f"Revoked {made['id']}\n"
    with monkeypatch.context() as viewer:
        viewer.setenv("LEVADA_SERVER", shell.up.url)
        viewer.setenv("LEVADA_TOKEN", made["token"])
        shell("ls", code=5)
    code, out, err = shell.try_out("user", "create", "carol", "--role", "operator")
    assert (code, len(out.splitlines())) == (0, 1)
    assert "carol can use it with: levada login" in err
    assert ["carol", "operator", "1"] in [row.split() for row in shell("user", "ls").splitlines()]
    assert shell("user", "revoke", "carol") == "Revoked all tokens of carol\n"
    assert "carol has no tokens" in shell("user", "revoke", "carol", code=4)


def test_explicit_token_takes_precedence(shell: Shell, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the server is given, the owner's token in its state directory does not replace it."""
    monkeypatch.setenv("LEVADA_TOKEN", shell.json("token", "create", "--role", "viewer")["token"])
    path, settings = shell.file("not.yaml", job("not")), shell.folder / ".levada.toml"

    def refused(*flags: str) -> None:
        assert "needs the role user" in shell("submit", "-f", path, *flags, code=5)
        assert "needs the role admin" in shell("token", "create", "--role", "admin", *flags, code=5)
        shell("nodes", *flags)

    refused()
    refused("--state-dir", str(home))
    refused("--server", shell.up.url)
    with monkeypatch.context() as named:
        named.setenv("XDG_STATE_HOME", str(shell.folder))
        named.setenv("LEVADA_STATE", str(home))
        refused()
        named.setenv("LEVADA_SERVER", "http://127.0.0.1:9")
        assert "no server answers at http://127.0.0.1:9" in shell("nodes", code=6)
        refused("--state-dir", str(home))
    # Nor if the token must not be sent.
    settings.write_text(f"state = {json.dumps(str(home))}")
    assert "a token is needed" in shell("nodes", code=5)
    settings.unlink()
    monkeypatch.setenv("LEVADA_TOKEN", "bad")
    assert "the token is unknown" in shell("ls", code=5)
    assert "the token is unknown" in shell("ls", "--state-dir", str(home), code=5)


def test_worker_token_cannot_list_jobs(shell: Shell, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVADA_SERVER", shell.up.url)
    monkeypatch.setenv("LEVADA_TOKEN", sign(KEY, "train-20261116-120000-abcd", 1, "g1-0"))
    for flags in ((), ("--state-dir", str(home))):
        assert "worker tokens can only report on their own job" in shell("ls", *flags, code=5)
    # Scripts that manage jobs need the token of a user.
    monkeypatch.setenv("LEVADA_TOKEN", shell.up.tokens["user"])
    shell("ls")


def test_login_and_contexts(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    token = shell.json("token", "create", "--user", "dora")["token"]
    monkeypatch.setenv("XDG_STATE_HOME", str(shell.folder / "elsewhere"))
    assert "no server was found" in shell("ls", code=6)
    done = subprocess.run(
        levada("login", shell.up.url, "--name", "lab"), input=token + "\n", capture_output=True, text=True, check=True
    )
    assert done.stdout == f"Logged in to {shell.up.url} as dora (user); saved as context lab\n"
    shell("ls")
    assert shell("context", "show") == f"{shell.up.url} as dora (user)\n"
    with monkeypatch.context() as chosen:
        chosen.setenv("LEVADA_TOKEN", shell.up.tokens["viewer"])
        assert shell("context", "show") == f"{shell.up.url} as vera (viewer)\n"
    config = Path(os.environ["XDG_CONFIG_HOME"]) / "levada" / "config.toml"
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    (known,) = shell.json("context", "ls")
    assert known == {"name": "lab", "server": shell.up.url, "state": None, "current": True}
    # Settings of a folder override those of the user, and the environment overrides both.
    (shell.folder / ".levada.toml").write_text('server = "http://127.0.0.1:9"\n')
    assert "no server answers at http://127.0.0.1:9" in shell("ls", code=6)
    with monkeypatch.context() as chosen:
        chosen.setenv("LEVADA_CONTEXT", "lab")
        shell("ls")
        chosen.setenv("LEVADA_CONTEXT", "labb")
        assert "did you mean lab?" in shell("ls", code=4)
    (shell.folder / ".levada.toml").unlink()
    assert shell("context", "use", "lab") == "lab\n"
    assert shell("context", "rm", "lab") == "lab\n"
    assert token not in config.read_text()
    assert "no server was found" in shell("ls", code=6)
    assert "must start with http" in shell("login", "lab", code=2)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("server = 3", "server: must be text"),
        ("servr = 'x'", "servr: unknown setting; did you mean server?"),
        ("server = ", "not valid TOML"),
        ("[contexts.a]\nurl = 'x'", "contexts.a: must have server and token, or state"),
    ],
)
def test_bad_settings(shell: Shell, text: str, line: str) -> None:
    (shell.folder / ".levada.toml").write_text(text)
    told = shell("ls", code=2)
    assert told.startswith(".levada.toml: ")
    assert line in told


@pytest.mark.parametrize(
    "told",
    ['server = "{url}"', 'context = "x"\n[contexts.x]\nserver = "{url}"', '[contexts.lab]\nserver = "{url}"'],
    ids=["server", "context", "another's name"],
)
def test_folder_settings_cannot_redirect_the_token_of_the_user(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    token = shell.json("token", "create", "--user", "dora")["token"]
    monkeypatch.setenv("XDG_STATE_HOME", str(shell.folder / "elsewhere"))
    monkeypatch.setenv("LEVADA_TOKEN", token)
    settings = Path(os.environ["XDG_CONFIG_HOME"]) / "levada" / "config.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(f'context = "lab"\n[contexts.lab]\nserver = "{shell.up.url}"\n')
    shell("ls")  # the token is for the server in the settings of the user
    (shell.folder / ".levada.toml").write_text(told.replace("{url}", shell.up.url))
    assert "a token is needed" in shell("ls", code=5)
    shell("ls", "--server", shell.up.url)


def test_doctor(shell: Shell) -> None:
    found = {each["what"]: each for each in shell.json("doctor")}
    assert found["server"]["state"] == found["token"]["state"] == found["nodes"]["state"] == "ok"
    settings = Path(os.environ["XDG_CONFIG_HOME"]) / "levada"
    settings.mkdir(parents=True)
    (settings / "config.toml").write_text('server = "http://127.0.0.1:9"\ntoken = "secret"\n')
    (settings / "config.toml").chmod(0o644)
    told = shell("doctor", code=1)
    assert "chmod 600" in told
    assert "secret" not in told


def test_doctor_shows_internal_errors_of_the_engine(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {each["what"]: each for each in shell.json("doctor")}
    assert found["engine"] == {"what": "engine", "state": "ok", "text": "no internal errors"}

    def broken(_engine: object, _event: object) -> None:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as planted:
        planted.setitem(engine._HANDLERS, NodesCordoned, broken)
        assert "internal error, undone: ZeroDivisionError: a bug" in shell("cordon", "node-0", code=1)
    shell("cordon", "node-0")
    told = shell("doctor", code=1)
    assert "NodesCordoned failed and was rolled back: ZeroDivisionError: a bug (1 time, last" in told
    assert "levada doctor -o json" in told
    code, out, _ = shell.try_out("doctor", "-o", "json")
    (fault,) = [each["detail"] for each in json.loads(out) if "detail" in each]
    assert code == 1
    assert "in broken" in fault["traceback"]
    assert fault["event"]
    metrics = shell.up.ask("GET", "/metrics", role="admin").text
    assert 'levada_engine_faults_total{event="NodesCordoned"} 1.0' in metrics


def test_doctor_names_only_extras_that_exist_and_are_used() -> None:
    root = Path(__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    code = "".join(path.read_text() for path in (root / "src" / "levada").rglob("*.py"))
    for package, _, extra in EXTRAS:
        assert extra in extras
        assert re.search(rf"^ *(import|from) {package}\b", code, re.MULTILINE), package


def test_verbs_are_registered_by_their_modules() -> None:
    for module, verbs in cli.VERBS.items():
        app = typer.Typer()
        import_module(f"levada.cli.{module}").register(app)
        found = [each.name for each in (*app.registered_commands, *app.registered_groups)]
        assert sorted(map(str, found)) == sorted(verbs), module
        for verb in verbs:
            app = cli.build(verb)
            assert verb in [each.name for each in (*app.registered_commands, *app.registered_groups)]


def test_verbs_are_documented_in_commands_md() -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    words = set(re.findall(r"[a-z]+", page))
    assert [verb for verbs in cli.VERBS.values() for verb in verbs if verb not in words] == []
