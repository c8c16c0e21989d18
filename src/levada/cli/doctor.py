"""`levada doctor`: check installation, settings and server, and suggest fixes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from levada import __version__
from levada.cli.connection import Server, StateDir, connect
from levada.cli.exit import ExitCode
from levada.cli.formatting import counted
from levada.cli.output import TextOrJson, columns, data, data_json
from levada.errors import LevadaError

if TYPE_CHECKING:
    from levada.sdk.client import Client

_LEAST_FREE_BYTES = 1 << 30
#: Optional packages: package, what needs it, and the extra that installs it.
EXTRAS = (
    ("fastapi", "running a server", "server"),
    ("numba", "fast simulations of thousands of jobs", "sim"),
    ("polars", "traces and sweeps", "sim"),
    ("matplotlib", "figures", "plot"),
    ("pynvml", "detecting GPUs", "gpu"),
)


class Finding(NamedTuple):
    """The result of one check."""

    what: str
    #: ok, note or fault.
    state: str
    text: str
    #: For a bug report; only in JSON.
    detail: Mapping[str, Any] | None = None


def register(app: typer.Typer) -> None:
    """Add the verb `doctor`."""
    app.command("doctor")(doctor)


def doctor(
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="Output format.")] = TextOrJson.TEXT,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Check this installation, the settings and the server.

    Exit code: 0 no faults, 1 at least one fault.
    """
    checks: list[Callable[[], Iterator[Finding]]] = [
        _program,
        _settings,
        lambda: _folder(state),
        lambda: _server(server, state),
        _gpus,
        _extras,
    ]
    print_findings([finding for check in checks for finding in check()], output)


def print_findings(findings: Sequence[Finding], output: TextOrJson) -> None:
    """Print a line for each finding; exits with code 1 if one is a fault."""
    if output is TextOrJson.JSON:
        data_json([{k: v for k, v in finding._asdict().items() if v is not None} for finding in findings])
    else:
        data(columns(("WHAT", "STATE", "TEXT"), [finding[:3] for finding in findings], spare=()))
    if any(finding.state == "fault" for finding in findings):
        raise typer.Exit(ExitCode.ERROR)


def _program() -> Iterator[Finding]:
    yield Finding("levada", "ok", f"{__version__} on Python {sys.version.split()[0]}")
    if not sys.platform.startswith("linux"):
        yield Finding("system", "note", f"{sys.platform}: only simulations run here; jobs need Linux")


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
        holds_token = "token" in settings or any(
            "token" in context for context in settings.get("contexts", {}).values()
        )
        if holds_token and os.stat(path).st_mode & 0o077:
            yield Finding(
                "settings", "fault", f"{path} contains a token and is readable by other users: run `chmod 600 {path}`"
            )
        else:
            yield Finding("settings", "ok", path)


def _folder(state: str | None) -> Iterator[Finding]:
    import shutil

    from levada.sdk.discovery import state_dir

    folder = state_dir(state)
    existing = folder
    while not os.path.exists(existing):
        existing = os.path.dirname(os.path.abspath(existing))
    if not os.access(existing, os.W_OK):
        yield Finding("state", "fault", f"{folder} is not writable; choose another folder with --state-dir")
        return
    free = shutil.disk_usage(existing).free
    if free < _LEAST_FREE_BYTES:
        yield Finding("state", "fault", f"{folder}: only {free >> 20} MiB free; checkpoints need at least 1 GiB")
    else:
        yield Finding("state", "ok", f"{folder}, {free >> 30} GiB free")


def _server(server: str | None, state: str | None) -> Iterator[Finding]:
    try:
        with connect(server, state, timeout_s=5.0, patience_s=0.0) as client:
            version = client.version()
            yield Finding("server", "ok", f"{client.address.url}, version {version}")
            if version != __version__:
                yield Finding("version", "note", f"server {version}, client {__version__}")
            if why := client.ready():
                yield Finding("ready", "fault", why)
            user = client.me()
            yield Finding("token", "ok", f"{user['user']} ({user['role']})")
            yield from _engine(client, version)
            nodes = client.nodes()
            lost = [node["name"] for node in nodes if node["phase"] == "Lost"]
            if lost:
                yield Finding("nodes", "fault", f"unreachable: {', '.join(lost)}")
            else:
                yield Finding("nodes", "ok" if nodes else "note", counted(len(nodes), "node"))
    except LevadaError as error:
        yield Finding("server", "note" if server is None and state is None else "fault", str(error))


def _engine(client: Client, version: str) -> Iterator[Finding]:
    """Report internal errors that the engine of the server rolled back."""
    from levada.errors import NotFound, Refused

    try:
        faults = client.faults()
    except (Refused, NotFound):
        return  # Only operators may list them, and older servers cannot.
    if not faults:
        yield Finding("engine", "ok", "no internal errors")
    for fault in faults:
        jobs = f" ({', '.join(fault['jobs'])})" if fault["jobs"] else ""
        yield Finding(
            "engine",
            "fault" if fault["version"] == version else "note",
            f"{fault['kind']}{jobs} failed and was rolled back: {fault['error']} "
            f"({counted(fault['times'], 'time')}, last {fault['last']}, version {fault['version']})",
            fault,
        )
    if faults:
        yield Finding(
            "engine",
            "note",
            "this is a bug in Levada: report it with the output of `levada doctor -o json`; a restart "
            "(`levada down --leave-jobs`, `levada up`) rebuilds the state of the engine",
        )


def _gpus() -> Iterator[Finding]:
    if find_spec("pynvml") is None:
        yield Finding("gpus", "note", "not detected: nvidia-ml-py is not installed; nodes have simulated GPUs")
        return
    import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
        yield Finding("gpus", "ok", f"{count} NVIDIA {'GPU' if count == 1 else 'GPUs'}")
    except pynvml.NVMLError as error:
        yield Finding("gpus", "note", f"none ({error}); nodes have simulated GPUs")


def _extras() -> Iterator[Finding]:
    for package, purpose, extra in EXTRAS:
        if find_spec(package) is None:
            yield Finding(package, "note", f"not installed; needed for {purpose}: pip install 'levada[{extra}]'")
