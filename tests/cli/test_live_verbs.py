"""Verbs for jobs against a real server."""

import csv
import io
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from levada.core.events import OptionsChanged
from tests.cli.live_server import Shell, environment, job
from tests.cli.test_startup import PROBE
from tests.jobfile.manifests import MPI, POD, TF, changed, container
from tests.timeouts import WAIT_S

COLUMNS = ["ID", "NAME", "USER", "QUEUE", "PRIO", "STATE", "GPUS(have/min-max)", "TYPE", "PROGRESS", "ETA", "AGE",
           "REASON"]  # fmt: skip
#: Runs for 2 minutes: longer than any test, and it ends if a test is killed.
FOREVER = "trap 'exit 75' TERM; for i in $(seq 1200); do sleep 0.1; done"


def levada(*words: str) -> list[str]:
    """Command line for a separate process."""
    return [sys.executable, "-m", "levada", *words]


def test_submit_wait_and_logs(shell: Shell) -> None:
    path = shell.file("hello.yaml", job("hello", "echo hello from $LEVADA_JOB in $PWD"))
    code, out, err = shell.try_out("submit", "-f", path)
    assert (code, out.split()[0]) == (0, "Submitted")
    name = out.split()[1]
    assert f"levada logs -f {name}" in err
    assert shell("wait", name, "--timeout", "180s") == f"{name} Succeeded\n"
    # It runs in the folder of the submission.
    assert shell("logs", name) == f"hello from {name} in {shell.folder}\n"
    assert shell("logs", "-f", name[-4:]) == f"hello from {name} in {shell.folder}\n"


def test_output_in_the_format_of_voda(shell: Shell) -> None:
    path = shell.file("voda.yaml", job("voda", FOREVER))
    created = shell("create", "-f", path).splitlines()
    name = created[0].removeprefix("Training job created: ")
    assert created == [f"Training job created: {name}", "View your logs by:", f"    levada logs {name}"]
    shell("wait", name, "--for", "Running", "-t", "20")
    header, *rows = shell("get", "jobs").splitlines()
    widths = (60, 10, 10, 25, 10, 10, 10)
    names = ("NAME", "STATUS", "WORKERS", "SCHEDULER", "WAITING", "RUNNING", "TOTAL")
    assert header == " ".join(f"{each:<{width}}" for each, width in zip(names, widths, strict=True))
    assert rows == sorted(rows)
    (row,) = [row for row in rows if row.startswith(name)]
    assert row.split()[1:4] == ["Running", "1", "a100"]
    assert shell("delete", name) == f"Training job deleted: {name}\n"
    assert shell("wait", name, code=103) == f"{name} Cancelled\n"


def test_control_characters_in_labels_are_replaced(shell: Shell) -> None:
    name = shell.submit("orders", "true", labels={"team": "\x1b[2J\nExit code:  0"}, gpuTypes=["\x1b]0;gone\x07"])
    page, why = shell("describe", name), shell("explain", name)
    assert "\x1b" not in page + why
    assert "Labels:     team=\ufffd[2J\ufffdExit code:  0\n" in page
    shell("cancel", name)


def on_terminal(shell: Shell, *words: str, home: Path) -> str:
    """Return the output of a verb on a terminal, both streams."""
    master, slave = pty.openpty()
    told = {**environment(shell.up, home), "TERM": "xterm"}
    process = subprocess.Popen(levada(*words), stdin=slave, stdout=slave, stderr=slave, env=told)
    os.close(slave)
    seen = b""
    try:
        while True:
            seen += os.read(master, 65536)
    except OSError:  # EIO: all writers closed the terminal
        pass
    finally:
        os.close(master)
    assert process.wait(WAIT_S) == 0, seen
    return seen.decode()


#: Clear the screen, set the title, change the colour, and write from right to left.
ORDERS = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e\x7f\ttab"


def test_control_sequences_in_logs_are_escaped_on_terminals(shell: Shell, home: Path) -> None:
    shell.folder.joinpath("orders").write_text(f"{ORDERS}\n 10%|#\r 90%|###\r\nplain \u00fc\n")
    name = shell.submit("orders", f"cat {shell.folder}/orders")
    shell("wait", name)
    assert shell("logs", name) == f"{ORDERS}\n 10%|#\r 90%|###\r\nplain \u00fc\n"  # unchanged in a pipe
    told = on_terminal(shell, "logs", name, home=home)
    visible = "\\x1b[2J\\x1b]0;title\\x07\\u009b31m\\u202e\\u007f"
    # The terminal itself expands tabs and adds carriage returns.
    assert told.expandtabs().splitlines() == [f"{visible}\ttab".expandtabs(), " 90%|###", "plain \u00fc"]
    assert "\x1b[2J" in on_terminal(shell, "logs", "--raw", name, home=home)
    attached = on_terminal(shell, "attach", name, home=home)
    assert visible in attached
    assert "\x1b" not in attached + told


def test_control_characters_in_lists_and_events_are_escaped_on_terminals(shell: Shell, home: Path) -> None:
    name = shell.submit("words", "true", labels={"team": ORDERS}, gpuTypes=[ORDERS])
    for words in (["events", name], ["describe", name], ["explain", name], ["ls"], ["get", "job", name, "-o", "json"]):
        told = on_terminal(shell, *words, home=home)
        assert not set(told.replace("\x1b[1m", "").replace("\x1b[0m", "")) & set("\x1b\x07\x7f\x9b\u202e"), words
    shell("cancel", name)


def test_ls_output_formats(shell: Shell) -> None:
    name = shell.submit("forms", "true", labels={"team": "forms"})
    shell("wait", name)
    mine = ("ls", "--label", "team=forms")
    header, row = shell(*mine).splitlines()
    assert header.split() == COLUMNS
    assert row.split()[:6] == [name, "forms", "ada", "default", "0", "Succeeded"]
    assert shell(*mine, "--no-headers").split()[0] == name
    assert "GENERATION" in shell(*mine, "-o", "wide")
    (view,) = shell.json(*mine)
    assert (view["id"], view["phase"], view["exit_code"], view["labels"]) == (name, "Succeeded", 0, {"team": "forms"})
    assert yaml.safe_load(shell(*mine, "-o", "yaml")) == [view]
    assert json.loads(shell(*mine, "-o", "jsonl")) == view
    (line,) = csv.DictReader(io.StringIO(shell(*mine, "-o", "csv")))
    assert (line["id"], line["labels.team"], line["reason.code"]) == (name, "forms", view["reason"]["code"])
    assert all("{" not in value and "[" not in value for value in line.values())
    assert shell(*mine, "-o", "name") == f"{name}\n"
    assert shell.json("get", "job", name) == view
    assert shell.json("get", "jobs", name) == [view]
    for alias in ("ps", "queue"):
        assert shell(alias, "--label", "team=forms", "-o", "name") == f"{name}\n"


def test_ls_filters(shell: Shell) -> None:
    first, second = shell.submit("some", "true"), shell.submit("some", "exit 1")
    shell("wait", first)
    shell("wait", second, code=100)

    def names(*words: str) -> list[str]:
        return shell("ls", "-o", "name", *words).split()

    assert {first, second} <= set(names())
    assert first in names("--state", "succeeded")
    assert second not in names("--state", "succeeded,pending")
    assert first in shell("get", "jobs", "-o", "name", "--state", "succeeded").split()
    assert second not in shell("get", "jobs", "--state", "succeeded")
    assert "--state: works only with `levada get jobs`" in shell("get", "nodes", "--state", "running", code=2)
    assert names("--limit", "1") == [second]
    # The newest jobs, in any order.
    assert names("--limit", "2", "--sort-by", "-submitted") == [second, first]
    assert names("--me", "--sort-by", "-submitted")[:2] == [second, first]
    assert names("--user", "absent") == []
    assert names("--queue", "default")
    code, out, err = shell.try_out("ls", "--user", "absent")
    assert (code, out, err) == (0, "", "No jobs found. Submit one with: levada submit -f FILE\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--state", "runing"], "--state: no such state: 'Runing'; did you mean Running?"),
        (["--sort-by", "subbmitted"], "--sort-by: jobs have no field 'subbmitted'; did you mean submitted?"),
        (["--label", "team"], "--label: team: must be NAME=VALUE"),
        (["--state", "/x"], "--state: /x: not a state of a job; use --state-dir or LEVADA_STATE for the state directory of a server"),
        (["--state", "mine"], "--state: mine: not a state of a job; use --state-dir or LEVADA_STATE for the state directory of a server"),
    ],
)  # fmt: skip
def test_invalid_filters(
    shell: Shell, words: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    shell("wait", shell.submit("filters", "true"))
    assert shell("ls", *words, code=2) == line + "\n"


def test_ls_watch_prints_changed_jobs(shell: Shell) -> None:
    process = subprocess.Popen(levada("ls", "-w", "-o", "jsonl"), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        name = shell.submit("watched", "true")
        phases = set()
        while "Succeeded" not in phases:
            view = json.loads(process.stdout.readline())
            if view["id"] == name:
                phases.add(view["phase"])
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 3
    finally:
        process.kill()
        process.communicate()


def test_ls_watch_aligns_progress_with_its_header(shell: Shell) -> None:
    process = subprocess.Popen(levada("ls", "-w", "--label", "team=rows"), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        header = process.stdout.readline()
        assert header.split() == COLUMNS
        steps = "import time, levada.runtime\nfor _ in levada.runtime.init().steps(100): time.sleep(0.1)"
        shell.submit("rows", f"{sys.executable} -c '{steps}'", steps=100, labels={"team": "rows"})
        seen: set[str] = set()
        while len(seen) < 2:
            row = process.stdout.readline()
            if row.startswith("ID"):
                header = row
                continue
            assert row[header.index("QUEUE") :].startswith("default")
            part = row[header.index("PROGRESS") :].split()[0]
            seen |= {part} if part.endswith("%") and part != "0%" else set()
    finally:
        process.kill()
        process.communicate()
    shell("cancel", "rows")


def test_ls_counts_gpus_not_workers(shell: Shell) -> None:
    name = shell.submit("counted", FOREVER, workers={"min": 1, "max": 2}, gpusPerWorker=2, gpuTypes=["a100"])
    shell("wait", name, "--for", "Running")
    _, row = shell("ls", "--state", "running", "-n", "1").splitlines()
    assert row.split()[COLUMNS.index("GPUS(have/min-max)")] == "2/2-4"
    assert "Workers:    1 of 1-2, 2 GPUs each" in shell("describe", name)
    shell("cancel", name)


def test_job_names_are_resolved(shell: Shell) -> None:
    older, newer = shell.submit("named", "true"), shell.submit("named", "true")
    assert shell.json("get", "job", "named")["id"] == newer
    assert shell.json("get", "job", older[-4:])["id"] == older
    assert shell.json("get", "job", older[:-1])["id"] == older
    assert "there is no job absent" in shell("get", "job", "absent", code=4)


def test_describe(shell: Shell) -> None:
    name = shell.submit("paged", FOREVER, workers=2, steps=1000)
    shell("wait", name, "--for", "Running")
    page = shell("describe", name)
    assert f"Id:         {name}" in page
    assert "Workers:    2 of 2\n" in page
    assert "Command:    sh -c" in page
    assert f"Folder:     {shell.folder}" in page
    assert "Progress:   unknown, of 1000 steps" in page
    assert "Retries:    0 of 0 used" in page
    assert page.count("node-") >= 2
    assert "submitted" in page
    shell("cancel", name)


def test_logs_of_several_workers_and_tail(shell: Shell) -> None:
    name = shell.submit("chatty", "for i in 1 2 3; do echo $LEVADA_RANK says $i; done", workers=2)
    shell("wait", name)
    assert sorted(shell("logs", name).splitlines()) == sorted(
        f"[g1-{rank}] {rank} says {i}" for rank in (0, 1) for i in (1, 2, 3)
    )
    assert shell("logs", name, "--worker", "g1-1", "--tail", "1") == "1 says 3\n"
    assert "no such option" in shell("logs", name, "--tial", "1", code=2)
    assert f"`levada describe {name}` lists them" in shell("logs", name, "--worker", "foo", code=4)


def test_logs_since(shell: Shell) -> None:
    name = shell.submit("timely", "echo once")
    shell("wait", name)
    assert shell("logs", name, "--since", "1h") == "once\n"
    assert shell("logs", name, "--since", "soon", code=2) == "--since: must be a duration, e.g. 90s, 2h, 1h30m or 7d\n"


def test_logs_of_a_pending_job_print_its_reason(shell: Shell) -> None:
    name = shell.submit("hopeless", "true", gpuTypes=["none-such"])
    shell.until(lambda: shell.json("get", "job", name)["reason"]["code"] != "arrived")
    why = shell.json("get", "job", name)["reason"]["text"].rstrip(".")
    assert shell.try_out("logs", name) == (0, "", f"Pending: {why}; no output yet\n")
    shell("cancel", name)
    assert shell.try_out("logs", name) == (0, "", "")


def test_run_names_a_job_after_its_script(shell: Shell) -> None:
    shell.folder.joinpath("fit.py").write_text("print('fitted')")
    code, out, err = shell.try_out("run", "--", sys.executable, "fit.py")
    assert (code, out) == (0, "fitted\n")
    assert err.startswith("Submitted fit-")


def test_logs_follow_waits_for_the_start(shell: Shell) -> None:
    first = shell.submit("first", "sleep 0.5")
    second = shell.submit("second", "echo at last", after=[first])
    code, out, err = shell.try_out("logs", "-f", second)
    assert (code, out) == (0, "at last\n")
    assert err.startswith(("Pending", "Starting"))


def test_events(shell: Shell) -> None:
    name = shell.submit("eventful", "true")
    shell("wait", name)
    told = [json.loads(line) for line in shell("events", name, "-o", "jsonl").splitlines()]
    assert {each["job"] for each in told} == {name}
    assert all({"id", "time", "type", "text"} <= each.keys() for each in told)
    assert [each["phase"] for each in told if each["type"] == "phase"][-1] == "Succeeded"
    assert "Succeeded" in shell("events", name).splitlines()[-1]
    assert shell.json("events", name, "-n", "1") == told[-1:]


def test_infeasible_job_is_accepted_with_a_warning(shell: Shell) -> None:
    path = shell.file("huge.yaml", job("huge", "true", gpusPerWorker=16))
    why = "Can never start: one worker needs 16 GPUs, the largest node has 2."
    code, out, err = shell.try_out("submit", "-f", path, "-o", "json")
    told = json.loads(out)
    assert (code, told["warnings"], err) == (0, [why], f"levada: {told['id']}: {why}\n")
    code, out, err = shell.try_out("submit", "-f", path, "--array", "0-2", "-o", "name")
    assert (code, err) == (0, f"levada: {out.split()[0]} and 2 more: {why}\n")
    code, out, err = shell.try_out("create", "-f", path)
    assert (code, why in err) == (0, True)
    shell("cancel", *[each["id"] for each in shell.json("ls") if each["workload"] == "huge"])
    fine = shell.json("submit", "-f", shell.file("fine.yaml", job("fine")))
    assert fine.keys() == {"id", "name", "phase"}


def test_explain_of_a_pending_job(shell: Shell) -> None:
    name = shell.submit("toobig", "true", workers=3, gpuTypes=["a100"])
    told = shell("explain", name)
    assert told.startswith(f"{name} is Pending: ")
    assert "What would help: " in told
    assert "End unknown" not in told  # The cause is that it cannot start, not undeclared steps.
    assert shell.json("explain", name)["reason"]["code"] == "too-large"
    assert f"{name} is Pending: " in shell("wait", name, "-t", "2.2", code=101)
    shell("cancel", name)


def test_whatif(shell: Shell) -> None:
    path = shell.file("perhaps.yaml", job("perhaps", "true", steps=100))
    answer = shell.json("whatif", "-f", path)
    assert answer["jobs"][0]["job"].startswith("perhaps-")
    assert "STARTS IN" in shell("whatif", "-f", path, "--policy", "fifo")
    assert shell("whatif", "-f", path, "--policy", "fifoo", code=2).endswith("did you mean fifo or FIFO?\n")
    assert "perhaps" not in shell("ls")


def test_exit_codes_of_wait(shell: Shell) -> None:
    good, bad = shell.submit("good", "true"), shell.submit("bad", "exit 9")
    assert shell("wait", good, bad, code=100).splitlines() == [f"{good} Succeeded", f"{bad} Failed"]
    told = shell.json("get", "job", bad)["reason"]["text"]
    assert told.count("code 9") == 1
    assert "The exit code was" not in told
    slow = shell.submit("slow", FOREVER)
    assert f"timed out after 0.2 s: {slow} is not finished; the job continues" in shell(
        "wait", slow, "--timeout", "0.2", code=101
    )
    assert shell("wait", slow, "--for", "Running", "-q") == ""
    assert "there is no job absent" in shell("wait", "absent", code=102)
    shell("cancel", slow)
    assert shell("wait", slow, "-q", code=103) == ""


def test_update_scale_suspend_resume_and_cancel(shell: Shell) -> None:
    name = shell.submit("changing", FOREVER, workers={"min": 1, "max": 2})
    shell("wait", name, "--for", "Running")
    assert shell("update", name, "--priority", "7", "--weight", "2") == f"{name}: priority 7, weight 2\n"
    assert shell.json("get", "job", name)["priority"] == 7
    assert "needs one of --priority" in shell("update", name, code=2)
    assert "there is no queue nowhere" in shell("update", name, "--queue", "nowhere", code=2)
    told = shell("scale", name, "1")
    assert told == f"{name}: Will change to 1 worker after its first checkpoint in $LEVADA_CHECKPOINT_DIR.\n"
    told = shell("scale", name, "99", code=5)
    assert told == f"levada: there is room for 2 workers of {name} at most\n"
    view = shell.json("get", "job", name)
    assert (view["min"], view["max"], view["fixed"]) == (1, 2, 1)
    assert shell("suspend", name, "--force") == f"Suspended {name}\n"
    shell("wait", name, "--for", "Suspended")
    assert "End unknown: the job is suspended." in shell("explain", name)
    fewer = "Will start with fewer than 9 workers: there is room for 2 at most."
    assert shell("scale", name, "9") == f"{name}: {fewer}\n"
    assert shell("resume", name) == f"Resumed {name}\n"
    shell("wait", name, "--for", "Running")
    # An error for one job does not affect the others.
    assert shell("cancel", "absent", name, code=4).startswith(f"Cancelled {name}\n")
    shell("wait", name, code=103)
    assert "has ended already" in shell("cancel", name, code=5)


def test_run_follows_its_command(shell: Shell) -> None:
    code, out, err = shell.try_out(
        "run", "--gpus", "2", "-e", "WHO=me", "--", "sh", "-c", "echo $WHO: $CUDA_VISIBLE_DEVICES"
    )
    assert (code, out) == (0, "me: 0,1\n")
    assert err.startswith("Submitted echo-")
    code, out, err = shell.try_out("run", "--gpus", "0", "--name", "fails", "sh", "-c", "exit 4")
    assert (code, out) == (100, "")
    assert err.splitlines()[-1].endswith(" ended: Failed with exit code 4")
    assert "must be a number or a range" in shell("run", "--workers", "some", "true", code=2)
    assert "levada run needs -- COMMAND..." in shell("run", "--", code=2)
    rank = ("sh", "-c", "echo rank ${RANK-none}")
    assert shell("run", "--gpus", "0", "--", *rank).splitlines() == ["rank none"]
    assert shell("run", "--gpus", "0", "--framework", "plain", "--", *rank).splitlines() == ["rank 0"]
    told = shell("run", "-w", "2", "--framework", "plain", "--", "torchrun", "train.py", code=2)
    assert "use framework: torchrun" in told


def test_interrupting_run_leaves_the_job_running(shell: Shell) -> None:
    process = subprocess.Popen(
        levada("run", "--name", "left", "--", "sh", "-c", f"echo ready; {FOREVER}"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 3
    assert "keeps running; follow it with `levada attach left-" in err
    assert shell.json("get", "job", "left")["phase"] == "Running"
    shell("cancel", "left")
    assert shell.try_out("attach", "left")[0] == 103


def test_exec(shell: Shell) -> None:
    name = shell.submit("beside", FOREVER, workers=2)
    shell("wait", name, "--for", "Running")
    done = subprocess.run(
        levada("exec", name, "--worker", "1", "--", "sh", "-c", "echo $LEVADA_JOB $LEVADA_RANK $PWD"),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"{name} 1 {shell.folder}\n"
    assert "has no worker 7" in shell("exec", name, "--worker", "7", "--", "true", code=4)
    assert "nonsense: No such file" in shell("exec", name, "--", "nonsense", code=2)
    shell("cancel", name)
    shell("wait", name, code=103)
    assert f"{name} has no workers: it is Cancelled" in shell("exec", name, "--", "true", code=4)


def test_files_are_checked_without_a_server(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nothing"))
    bad = job("bad", "true", workers=0, gpus=1)
    path = shell.file("bad.yaml", bad)
    for verb in ("submit", "create", "apply", "whatif"):
        assert shell(verb, "-f", path, code=2).splitlines() == [
            "spec.workers.min: must be at least 1",
            "spec.gpus: unknown field; did you mean gpuTypes?",
        ]
    none = str(tmp_path / "none.yaml")
    assert shell("submit", "-f", none, code=2) == f"{none}: No such file or directory\n"
    assert shell("submit", "-f", none, "-f", path, code=2).startswith(f"{none}: No such file or directory\n{path}: ")
    assert shell("submit", code=2) == "levada submit needs either -f FILE or a script\n"
    good = shell.file("good.yaml", job("good"))
    assert shell("submit", "-f", good, "--dry-run").startswith("Job good is valid (framework: plain)\n")
    # A job file without -f is recognized; other text files are not scripts.
    assert shell("submit", "--dry-run", good).startswith("Job good is valid (framework: plain)\n")
    (tmp_path / "train.py").write_text("print(1)")
    assert "not a script" in shell("submit", "train.py", code=2)
    assert "start one with `levada up`" in shell("submit", "-f", good, code=6)
    assert "start one with `levada up`" in shell("ls", code=6)
    both = shell("submit", "-f", good, "-f", path, code=2)
    assert both.startswith(f"{path}: spec.workers.min: ")


def test_submit_creates_all_jobs_of_a_file_or_none(shell: Shell) -> None:
    path = shell.file("two.yaml", job("innocent"), job("lost", "true", queue="nowhere"))
    assert "there is no queue nowhere" in shell("submit", "-f", path, code=2)
    assert "innocent" not in shell("ls")


def test_same_name_in_two_files_is_refused(shell: Shell) -> None:
    one, two = shell.file("one.yaml", job("twin")), shell.file("two.yaml", job("twin"))
    told = shell("submit", "-f", one, "-f", two, code=2)
    assert told == f"{two}: metadata.name: twin is also in {one}; rename one of them\n"
    assert not [each for each in shell.json("ls") if each["workload"] == "twin"]


def test_files_with_several_jobs_and_arrays(shell: Shell) -> None:
    path = shell.file("several.yaml", job("one", "true"), job("two", "echo $LEVADA_ARRAY_INDEX", array="3-4"))
    answer = shell.json("submit", "-f", path)
    assert [each.keys() for each in answer] == [{"id", "name", "phase"}] * 3
    names = [each["id"] for each in answer]
    shell("wait", *names)
    assert [shell("logs", name) for name in names[1:]] == ["3\n", "4\n"]
    assert [shell.json("get", "job", name)["array_index"] for name in names] == [None, 3, 4]
    assert "Array:      index 4" in shell("describe", names[2])
    header, *rows = shell("ls", "-n", "2", "-o", "wide").splitlines()
    assert [row.split()[header.split().index("INDEX")] for row in rows] == ["3", "4"]
    _, out, err = shell.try_out("submit", "-f", path)
    assert [line.rpartition("  index ")[2] for line in out.splitlines()[1:]] == ["3", "4"]
    assert "levada ls -n 3 -o wide" in err
    alone = shell.json("submit", "-f", shell.file("alone.yaml", job("alone", "true")))
    assert alone["id"].startswith("alone-")


def test_job_starts_after_its_dependency(shell: Shell) -> None:
    first = shell.submit("before", "sleep 0.3")
    second = shell.submit("afterwards", "true", after=[first])
    assert shell("wait", second) == f"{second} Succeeded\n"
    assert shell.json("get", "job", first)["finished"] <= shell.json("get", "job", second)["started"]


def test_wait_ends_when_a_dependency_fails(shell: Shell) -> None:
    first = shell.submit("breaks", "sleep 0.5; exit 3")
    second = shell.submit("hopeless", "true", after=[first])
    code, out, told = shell.try_out("wait", second)
    assert (code, out) == (100, f"{second} Pending\n")
    assert (
        f"{second} can never start: a job that it depends on failed or was cancelled; run `levada cancel {second}`"
        in told
    )
    assert "can never start" in shell("attach", second, code=100)
    assert shell("wait", second, "--for", "Pending") == f"{second} Pending\n"
    shell("cancel", second)
    # A dependency that already failed is refused at submission.
    path = shell.file("late.yaml", job("late", "true", after=[first]))
    assert f"late would never start: it depends on {first}, which has ended as Failed" in shell(
        "submit", "-f", path, code=5
    )


def test_exit_code_75_restarts_the_job(shell: Shell) -> None:
    def pauses(seconds: float) -> None:
        event = OptionsChanged(at=0.0, options={"backoff_s": seconds})
        shell.up.run(lambda: shell.up.service.loop.apply(event))

    pauses(0.2)
    try:
        name = shell.submit("leaver", "test -e left && exit 0; touch left; exit 75", retries=0)
        assert shell("wait", name) == f"{name} Succeeded\n"
    finally:
        pauses(5.0)
    view = shell.json("get", "job", name)
    assert (view["exit_code"], view["restarts"], view["retried"], view["generation"]) == (0, 1, 0, 2)
    events = [json.loads(line) for line in shell("events", name, "-o", "jsonl").splitlines()]
    assert [event["text"] for event in events if event.get("reason") == "left"] == [
        "Pending: Exited with code 75 soon after its start (consecutive exits: 1); "
        "restarting from its checkpoint after a pause."
    ]


def test_progress_is_unknown_without_reported_steps(shell: Shell) -> None:
    name = shell.submit("silent", FOREVER, steps=100)
    shell("wait", name, "--for", "Running")
    assert shell.json("get", "job", name)["progress"] == {"step": None, "total": 100, "rate": None}
    header, *rows = shell("ls").splitlines()
    (row,) = [row for row in rows if row.startswith(name)]
    assert row[header.index("PROGRESS") :].split()[0] == "-"
    assert "unknown, of 100 steps" in shell("describe", name)
    shell("cancel", name)
    shell("wait", name, code=103)
    assert shell.json("get", "job", name)["progress"]["step"] is None


def test_events_of_updates_and_resizes(shell: Shell) -> None:
    sizes = {"min": 2, "max": 4, "step": 2}
    name = shell.submit("changing", FOREVER, preemptible=True, gpusPerWorker=0, workers=sizes)
    shell("wait", name, "--for", "Running")
    shell("update", name, "--priority", "3", "--min", "3")
    shell("update", name, "--max", "2", "--min", "1")
    shell.until(lambda: len(shell.json("get", "job", name)["workers"]) == 2)
    shell.until(lambda: shell.json("get", "job", name)["phase"] == "Running")
    events = [json.loads(line) for line in shell("events", name, "-o", "jsonl").splitlines()]
    told = [event["text"] for event in events if event["type"] == "update"]
    assert told == [
        "Updated: min 4 (was 2), priority 3 (was 0).",
        "Updated: max 2 (was 4), min 2 (was 4).",
    ]
    texts = {event["text"] for event in events if event.get("phase") == "Resizing"}
    assert texts == {"Resizing from 4 to 2 workers by a restart."}
    assert {event["type"] for event in events} <= {"submitted", "phase", "reason", "grant", "update", "restart"}
    assert "3 is not a multiple of the job's step (2)" in shell("scale", name, "3", code=2)
    shell("cancel", name)
    shell("wait", name, code=103)


def test_scripts(shell: Shell) -> None:
    script = shell.folder / "train.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH --gpus=2 --qos=high\n#LEVADA name=scripted label.kind=script\necho $1 $CUDA_VISIBLE_DEVICES\n"
    )
    for words in (
        ["submit", "-o", "name", str(script), "--hello"],
        ["submit", "--from-sbatch", str(script), "-o", "name", "--", "--hello"],
    ):
        code, out, err = shell.try_out(*words)
        assert (code, err) == (
            0,
            f"levada: {script}: line 2: --qos=high: ignored: not supported\n",
        )
        name = out.strip()
        shell("wait", name)
        assert shell("logs", name) == "--hello 0,1\n"
        assert name.startswith("scripted-")
    told = shell("submit", "-f", str(script), code=2)
    assert told == f"{script}: is a script, not a job file; submit it with `levada submit {script}`\n"


def test_an_mpijob_runs_its_launcher(shell: Shell) -> None:
    stub = shell.folder / "horovodrun"
    # Like Horovod: run the discovery script, then the command.
    stub.write_text('#!/bin/sh\necho hosts: $("$6")\nshift 6\nexec "$@"\n')
    stub.chmod(0o755)
    words = "horovodrun -np $(MIN_NP) --max-np $(MAX_NP) --host-discovery-script /etc/mpi/discover_hosts.sh"

    def change(manifest: dict[str, Any]) -> None:
        manifest["metadata"]["name"] = "mpi"
        launcher = container(manifest, "Launcher")
        launcher["args"] = [f"{words} echo $(JOB_NAME) of $(EPOCHS)"]
        launcher["env"].append({"name": "PATH", "value": f"{shell.folder}:{os.environ['PATH']}"})

    name = shell("submit", "-f", shell.file("mpi.yaml", changed(MPI, change)), "-o", "name").strip()
    view = shell.json("get", "job", name)
    assert (view["kind"], view["priority"], view["min"], view["max"]) == ("MPIJob", -3, 1, 8)
    assert shell("wait", name) == f"{name} Succeeded\n"
    hosts, said = shell("logs", name).splitlines()
    assert hosts.removeprefix("hosts: ").strip()
    assert said.endswith(f"{name} of 150")


def test_tfjob_keeps_its_name_and_gets_tf_config(shell: Shell) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["metadata"] = {"name": "tf"}
        container(manifest, "PS")["command"] = ["sh", "-c", f"echo $ROLE; {FOREVER}"]
        container(manifest, "Worker", 1)["command"] = ["sh", "-c", "echo $TF_CONFIG"]

    path = shell.file("tf.yaml", changed(TF, change))
    assert shell("submit", "-f", path, "-o", "name") == "tf\n"
    assert "already" in shell("submit", "-f", path, code=5)
    shell("wait", "tf")
    said = shell("logs", "tf").splitlines()
    config = json.loads(next(line for line in said if line.startswith("[g1-0] ")).removeprefix("[g1-0] "))
    assert config["task"] == {"type": "worker", "index": 0}
    assert len(config["cluster"]["ps"]) == 2
    assert "[g1-ps0] server" in said
    assert "tf has succeeded" in shell("submit", "-f", path, code=5)


def test_resubmitted_tfjob_has_new_output(shell: Shell) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["metadata"] = {"name": "again"}
        manifest["spec"]["tfReplicaSpecs"].pop("PS")
        command = [
            "sh",
            "-c",
            f"test -e $LEVADA_CHECKPOINT_DIR/old || echo new; : > $LEVADA_CHECKPOINT_DIR/old; {FOREVER}",
        ]
        container(manifest, "Worker", 1)["command"] = command

    path = shell.file("again.yaml", changed(TF, change))
    for _ in range(2):
        assert shell("submit", "-f", path, "-o", "name") == "again\n"
        shell.until(lambda: "new" in shell("logs", "again"))
        shell("delete", "again")
        shell("wait", "again", code=103)


def test_kubernetes_only_jobs_are_refused(shell: Shell) -> None:
    assert "serving pods run only on Kubernetes" in shell("submit", "-f", shell.file("pod.yaml", POD), code=5)
    imageless = changed(TF, lambda m: container(m, "Worker", 1).pop("command"))
    assert "only the container image defines it" in shell("submit", "-f", shell.file("image.yaml", imageless), code=5)


def test_idempotency_key(shell: Shell) -> None:
    path = shell.file("keyed.yaml", job("keyed", "true"))
    names = {shell("submit", "-f", path, "--key", "k1", "-o", "name") for _ in range(2)}
    assert len(names) == 1


def test_hanging_server_times_out_with_a_message(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a stopped server: the kernel accepts connections, and no answer follows."""
    monkeypatch.setattr("levada.cli.spinner._DELAY_S", 0.05)
    monkeypatch.setattr("levada.cli.connection._QUICK_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        code, out, err = shell.try_out("ls", "--server", url)
    assert (code, out) == (6, "")
    first, last = err.splitlines()
    assert first == f"waiting for the server at {url}"
    assert last.startswith(f"levada: the server at {url} has not answered for 0.5 s; ")


def test_common_verbs_import_no_heavy_modules(shell: Shell) -> None:
    shell("wait", shell.submit("light", "true"))
    for words in (["ls"], ["ls", "-o", "json"], ["get", "jobs"], ["nodes"], ["explain", "light"], ["logs", "light"]):
        done = subprocess.run([sys.executable, "-c", PROBE, *words], capture_output=True, text=True, check=False)
        # Slow machines print this line.
        said = [line for line in done.stderr.splitlines() if not line.startswith("waiting for the server at")]
        assert (done.returncode, said) == (0, [])


def test_cpu_time_of_ls(shell: Shell) -> None:
    shell("wait", shell.submit("quick", "true"))
    # Required imports are half of it; an idle machine takes 0.1 s for both together.
    needed = min(_cpu_s([sys.executable, "-c", "import typer, http.client"]) for _ in range(4))
    assert min(_cpu_s(levada("ls", "-n", "10")) for _ in range(4)) < 2 * needed + 0.02


def _cpu_s(command: list[str]) -> float:
    before = os.times()
    subprocess.run(command, capture_output=True, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_completion_of_job_names(shell: Shell, home: Path) -> None:
    name = shell.submit("completed", "true")
    asked = {"_LEVADA_COMPLETE": "complete_bash", "COMP_WORDS": f"levada logs {name[:12]}", "COMP_CWORD": "2"}
    began = time.monotonic()
    done = subprocess.run(levada(), env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    assert name in done.stdout.split()
    assert time.monotonic() - began < 30
    gone = {**os.environ, **asked, "XDG_STATE_HOME": str(shell.folder)}
    done = subprocess.run(levada(), env=gone, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")
    # The server in the command line is asked.
    words = f"levada logs --state-dir {home} {name[:12]}"
    named = {**gone, "COMP_WORDS": words, "COMP_CWORD": "4"}
    done = subprocess.run(levada(), env=named, capture_output=True, text=True, check=True)
    assert name in done.stdout.split()
