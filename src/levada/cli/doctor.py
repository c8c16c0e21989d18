"""`levada doctor`: what works here, what does not, and what to do about it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from levada import __version__
from levada.cli.connection import Server, State, connect
from levada.cli.exit import ExitCode
from levada.cli.output import TextOrJson, columns, data, data_json
from levada.errors import LevadaError

if TYPE_CHECKING:
    from levada.sdk.client import Client

_LEAST_FREE_BYTES = 1 << 30
#: Packages that make something possible: what, and the extra that installs them.
EXTRAS = (
    ("numba", "simulations of thousands of jobs run fast", "sim"),
    ("polars", "traces and sweeps", "sim"),
    ("matplotlib", "figures", "plot"),
    ("pynvml", "real GPUs are found", "gpu"),
)


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    #: ok, note or fault.
    state: str
    text: str
    #: For a bug report; only in JSON.
    detail: dict[str, Any] | None = None


def register(app: typer.Typer) -> None:
    """Adds the verb `doctor`."""
    app.command("doctor")(doctor)


def doctor(
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="How to print it.")] = TextOrJson.TEXT,
    server: Server = None,
    state: State = None,
) -> None:
    """Look at this installation, the settings and the server, and say what is wrong. Exit code 1 for a fault."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        _program,
        _settings,
        lambda: _folder(state),
        lambda: _server(server, state),
        _gpus,
        _extras,
    ]
    found = [finding for check in checks for finding in check()]
    if output is TextOrJson.JSON:
        data_json([{k: v for k, v in finding._asdict().items() if v is not None} for finding in found])
    else:
        data(columns(("WHAT", "STATE", "TEXT"), [finding[:3] for finding in found], spare=()))
    if any(finding.state == "fault" for finding in found):
        raise typer.Exit(ExitCode.ERROR)


def _program() -> Iterator[Finding]:
    yield Finding("levada", "ok", f"{__version__} on Python {sys.version.split()[0]}")
    if not sys.platform.startswith("linux"):
        yield Finding("system", "note", f"{sys.platform}: simulations run here, jobs run on Linux only")


def _settings() -> Iterator[Finding]:
    from levada.cli import config

    for path in (config.own_file(), ".levada.toml"):
        if not os.path.exists(path):
            continue
        try:
            settings = config.read(path)
        except LevadaError as error:
            yield Finding("settings", "fault", str(error))
            continue
        holds_token = "token" in settings or any("token" in each for each in settings.get("contexts", {}).values())
        if holds_token and os.stat(path).st_mode & 0o077:
            yield Finding("settings", "fault", f"{path} holds a token and others may read it: chmod 600 {path}")
        else:
            yield Finding("settings", "ok", path)


def _folder(state: str | None) -> Iterator[Finding]:
    import shutil

    from levada.sdk.place import state_dir

    folder = state_dir(state)
    there = folder
    while not os.path.exists(there):
        there = os.path.dirname(os.path.abspath(there))
    if not os.access(there, os.W_OK):
        yield Finding("state", "fault", f"{folder} cannot be written; give another with --state-dir")
        return
    free = shutil.disk_usage(there).free
    if free < _LEAST_FREE_BYTES:
        yield Finding("state", "fault", f"{folder} has {free >> 20} MiB left; checkpoints need room")
    else:
        yield Finding("state", "ok", f"{folder}, {free >> 30} GiB left")


def _server(server: str | None, state: str | None) -> Iterator[Finding]:
    try:
        with connect(server, state, timeout_s=5.0, patience_s=0.0) as client:
            version = client.version()
            yield Finding("server", "ok", f"{client.address.url}, version {version}")
            if version != __version__:
                yield Finding("version", "note", f"the server has {version}, this is {__version__}")
            if why := client.ready():
                yield Finding("ready", "fault", why)
            who = client.me()
            yield Finding("token", "ok", f"{who['user']} ({who['role']})")
            yield from _engine(client, version)
            nodes = client.nodes()
            gone = [node["name"] for node in nodes if node["phase"] == "Lost"]
            if gone:
                yield Finding("nodes", "fault", f"{', '.join(gone)} cannot be reached")
            else:
                yield Finding("nodes", "ok" if nodes else "note", f"{len(nodes)} of them")
    except LevadaError as error:
        yield Finding("server", "note" if server is None and state is None else "fault", str(error))


def _engine(client: Client, version: str) -> Iterator[Finding]:
    """Internal errors that the server's engine met and undid."""
    from levada.errors import NotFound, Refused

    try:
        faults = client.faults()
    except (Refused, NotFound):
        return  # for operators only, and older servers have no list
    if not faults:
        yield Finding("engine", "ok", "no internal errors")
    for fault in faults:
        about = f" ({', '.join(fault['jobs'])})" if fault["jobs"] else ""
        yield Finding(
            "engine",
            "fault" if fault["version"] == version else "note",
            f"{fault['kind']}{about} failed and was undone: {fault['error']} (seen {fault['times']} times, last "
            f"{fault['last']}, version {fault['version']})",
            fault,
        )
    if faults:
        yield Finding(
            "engine",
            "note",
            "this is a bug in Levada: report it with `levada doctor -o json`. A restart (`levada down --leave-jobs`, "
            "`levada up`) tells the engine again what runs",
        )


def _gpus() -> Iterator[Finding]:
    if find_spec("pynvml") is None:
        yield Finding("gpus", "note", "none are looked for without nvidia-ml-py; nodes are pretend ones")
        return
    import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
        yield Finding("gpus", "ok", f"{count} of NVIDIA's")
    except pynvml.NVMLError as error:
        yield Finding("gpus", "note", f"none ({error}); nodes are pretend ones")


def _extras() -> Iterator[Finding]:
    for package, what, extra in EXTRAS:
        if find_spec(package) is None:
            yield Finding(package, "note", f"is not installed: {what} with pip install 'levada[{extra}]'")
