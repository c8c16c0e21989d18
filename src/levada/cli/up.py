"""`levada up|down|serve`: the local server."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli.extras import require
from levada.cli.output import TextOrJson, data, data_json, message
from levada.errors import BadInput, LevadaError, Refused

if TYPE_CHECKING:
    from levada.server.state_dir import StateFolder


class BackendName(StrEnum):
    """What runs jobs."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"


StateDir = Annotated[
    str | None,
    typer.Option(
        "--state-dir",
        metavar="DIR",
        help="State directory of the server; each server needs its own.",
        show_default="$LEVADA_STATE or $XDG_STATE_HOME/levada",
    ),
]
#: The old name of `--state-dir`, for one version.
OldState = Annotated[str | None, typer.Option("--state", hidden=True)]
Node = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="TYPE=N,…", help="Simulate a node with these GPUs by type; may be repeated."),
]
Nodes = Annotated[int | None, typer.Option("--nodes", help="Number of simulated nodes.", show_default="2")]
GpusPerNode = Annotated[
    int | None, typer.Option("--gpus-per-node", help="GPUs of each simulated node.", show_default="4")
]
GpuType = Annotated[str | None, typer.Option("--gpu-type", help="GPU type of the simulated nodes.", show_default="gpu")]
Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[int | None, typer.Option("--port", help="Port to listen on; 0 = any free port.", show_default="7373")]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="LEVADA_STORE",
        help="Database: sqlite:///FILE or postgresql://…. Pass a URL with a password in LEVADA_STORE instead.",
        show_default="levada.db in the state directory",
    ),
]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        "--checkpoints", metavar="DIR", help="Checkpoint directory that all machines share.", show_default=False
    ),
]
PolicyName = Annotated[
    str | None, typer.Option("--policy", help="Policy of a new server.", show_default="elastic-fifo")
]
Option = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set an engine option, e.g. min_run_s=10; may be repeated."),
]
StuckAfter = Annotated[
    str | None,
    typer.Option(
        "--stuck-after",
        metavar="TIME",
        help="Warn about jobs without a step, or with idle GPUs, for this time; 0 = never.",
        show_default="30m",
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        metavar="WHAT=TIME",
        help="Keep events, finished jobs or the audit log this long, e.g. events=30d; may be repeated.",
        show_default="events=90d, jobs=400d, audit=400d",
    ),
]
Certfile = Annotated[str | None, typer.Option("--certfile", help="TLS certificate file.", show_default=False)]
Keyfile = Annotated[
    str | None, typer.Option("--keyfile", help="Private key file of the TLS certificate.", show_default=False)
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow plain HTTP on a non-loopback address (only behind a TLS proxy).")
]

TakeOver = Annotated[
    str | None,
    typer.Option(
        "--take-over",
        metavar="HOST",
        help="Take over the store from HOST. Use only when none of HOST's jobs are still running; they are restarted "
        "here.",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="Accept requests with this Host header, e.g. of a proxy; may be repeated.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("up")(up)
    app.command("down")(down)
    app.command("serve")(serve)


def up(  # noqa: PLR0913 - one parameter per flag
    state: StateDir = None,
    old_state: OldState = None,
    node: Node = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    gpu_type: GpuType = None,
    host: Host = "127.0.0.1",
    port: Port = None,
    store: StoreUrl = None,
    checkpoints: Checkpoints = None,
    policy: PolicyName = None,
    option: Option = None,
    stuck_after: StuckAfter = None,
    keep: Keep = None,
    certfile: Certfile = None,
    keyfile: Keyfile = None,
    insecure: Insecure = False,
    allow_host: AllowHost = None,
    take_over: TakeOver = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in the foreground; Ctrl-C stops the server and its jobs.")
    ] = False,
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="Output format.")] = TextOrJson.TEXT,
) -> None:
    """Start the local server in the background; print URL and token.

    `levada down` stops it. It uses the GPUs of this machine, or simulated nodes with --node or --nodes.
    """
    require("server", "levada up")
    nodes_asked = declared(node, nodes, gpus_per_node, gpu_type)
    setup: dict[str, Any] = {
        "host": host,
        "port": _valid(port),
        "store": _absolute_store(store),
        "checkpoints": _absolute(checkpoints),
        "nodes": nodes_asked,
        "policy": policy,
        "options": _options(option or []),
        "stuck_after_s": _seconds(stuck_after),
        "keep": _times(keep),
        "certfile": _absolute(certfile),
        "keyfile": _absolute(keyfile),
        "insecure": insecure,
        "names": allow_host or None,
        "gone": _host(take_over),
    }
    if foreground:
        _serve_here(_folder(renamed(state, old_state)), setup, output)
        return
    from levada.cli.daemon import start_server
    from levada.cli.interrupts import cleanup_protected
    from levada.server.state_dir import SERVER, StateFolder

    home = StateFolder(_folder(renamed(state, old_state)))
    with cleanup_protected():
        start_server(home, setup)
    _print_address(home.read(SERVER), output)


def _host(name: str | None) -> str | None:
    if name is not None and not name.strip():
        raise BadInput.one("--take-over: must be a host name, as printed by the server that refuses to start")
    return name


def serve(  # noqa: PLR0913 - one parameter per flag
    state: StateDir = None,
    old_state: OldState = None,
    node: Node = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    gpu_type: GpuType = None,
    host: Host = "127.0.0.1",
    port: Port = None,
    store: StoreUrl = None,
    checkpoints: Checkpoints = None,
    policy: PolicyName = None,
    option: Option = None,
    stuck_after: StuckAfter = None,
    keep: Keep = None,
    certfile: Certfile = None,
    keyfile: Keyfile = None,
    insecure: Insecure = False,
    allow_host: AllowHost = None,
    backend: Annotated[
        BackendName, typer.Option("--backend", help="Run jobs on this machine and its agents, or on Kubernetes.")
    ] = BackendName.LOCAL,
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            help="Kubernetes configuration file.",
            show_default="the service account of this pod, $KUBECONFIG or ~/.kube/config",
        ),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            "--public-url", metavar="URL", help="URL under which workers reach the server.", show_default=False
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait as a standby while another server holds the lease.")
    ] = False,
    take_over: TakeOver = None,
) -> None:
    """Run the server in the foreground, for service managers.

    SIGTERM leaves jobs running; the next start adopts them.
    """
    require("server", "levada serve")
    nodes_asked = declared(node, nodes, gpus_per_node, gpu_type)
    setup = {
        "host": host,
        "port": _valid(port),
        "store": _absolute_store(store),
        "checkpoints": _absolute(checkpoints),
        "nodes": nodes_asked,
        "policy": policy,
        "options": _options(option or []),
        "stuck_after_s": _seconds(stuck_after),
        "keep": _times(keep),
        "certfile": _absolute(certfile),
        "keyfile": _absolute(keyfile),
        "insecure": insecure,
        "names": allow_host or None,
        "wait": wait,
        "gone": _host(take_over),
        "backend": backend.value,
        "kubeconfig": _absolute(kubeconfig),
        "public_url": public_url,
    }
    if backend is BackendName.KUBERNETES:
        require("kubernetes", "levada serve --backend kubernetes")
        if nodes_asked is not None:
            raise BadInput.one("--backend kubernetes: nodes are those of the cluster; leave out --node and --nodes")
    elif kubeconfig is not None:
        raise BadInput.one("--kubeconfig: needs --backend kubernetes")
    _serve_here(_folder(renamed(state, old_state)), setup, None)


def down(
    state: StateDir = None,
    old_state: OldState = None,
    stop_jobs: Annotated[
        bool, typer.Option("--stop-jobs", help="Stop the jobs (default); `up` restarts them from their checkpoints.")
    ] = False,
    leave_jobs: Annotated[
        bool, typer.Option("--leave-jobs", help="Keep jobs running; the next `up` adopts them.")
    ] = False,
) -> None:
    """Stop the server and its jobs (`up` restarts them).

    `levada up` restarts each job from its last checkpoint, or from the beginning if it has none. `--leave-jobs` keeps
    jobs running without the server.
    """
    from levada.cli.daemon import stop_server
    from levada.server.state_dir import StateFolder

    if stop_jobs and leave_jobs:
        raise BadInput.one("use either --stop-jobs or --leave-jobs, not both")
    home = StateFolder(_folder(renamed(state, old_state)))
    if home.holder() is None:
        message("no server is running")
        return
    if not stop_jobs and not leave_jobs:
        _protect_other_users(home)
    stop_server(home, leave_jobs=leave_jobs)
    jobs = "its jobs keep running" if leave_jobs else "the next `levada up` restarts its jobs from their checkpoints"
    message(f"server stopped; {jobs}")


def _protect_other_users(home: StateFolder) -> None:
    """Raise Refused if jobs of other users are running."""
    import getpass

    from levada.sdk.client import Client
    from levada.sdk.discovery import owners

    # Only its owner can stop a server, so use the owner's token, not LEVADA_TOKEN.
    place = owners(str(home.folder))
    if place is None:
        return
    try:
        client = Client(*place, timeout_s=10.0, patience_s=0.0, insecure=True)
        running = client.jobs(phases=["Running", "Starting", "Resizing"])
    except LevadaError:
        return  # a server that does not answer can still be stopped
    others = sorted({job["user"] for job in running} - {getpass.getuser()})
    if others:
        raise Refused(f"jobs of {', '.join(others)} are running; use --stop-jobs or --leave-jobs")


def renamed(state: str | None, old_state: str | None) -> str | None:
    """Return the value of `--state-dir`, or of the deprecated `--state` with a warning."""
    if old_state is not None:
        message("levada: --state is deprecated; use --state-dir")
    return old_state if state is None else state


def _folder(state: str | None) -> Path:
    from levada.sdk.discovery import state_dir

    return Path(state_dir(state)).absolute()


def _valid(port: int | None) -> int | None:
    if port is not None and not 0 <= port <= 65535:
        raise BadInput.one("--port: must be 0 to 65535")
    return port


def _absolute(path: str | None) -> str | None:
    """Return an absolute path: the server has another working directory."""
    return None if path is None else os.path.abspath(path)


def _absolute_store(url: str | None) -> str | None:
    """Like `_absolute`, for the URL of an SQLite file."""
    scheme = "sqlite:///"
    if url is None or not url.startswith(scheme):
        return url
    return scheme + os.path.abspath(url.removeprefix(scheme))


def declared(
    node: list[str] | None, nodes: int | None, gpus_per_node: int | None, gpu_type: str | None
) -> list[dict[str, int]] | None:
    """Return the GPUs of each simulated node; None if none are requested."""
    if node:
        if nodes is not None or gpus_per_node is not None or gpu_type is not None:
            raise BadInput.one("--node cannot be combined with --nodes, --gpus-per-node or --gpu-type")
        return [_gpus(text) for text in node]
    if nodes is None and gpus_per_node is None and gpu_type is None:
        return None
    count, size = 2 if nodes is None else nodes, 4 if gpus_per_node is None else gpus_per_node
    if not 1 <= count <= 10_000:
        raise BadInput.one("--nodes: must be 1 to 10,000")
    if not 0 <= size <= 1_000:
        raise BadInput.one("--gpus-per-node: must be 0 to 1,000")
    return [{gpu_type or "gpu": size} for _ in range(count)]


def _gpus(text: str) -> dict[str, int]:
    gpus: dict[str, int] = {}
    for part in text.split(","):
        name, equals, amount = part.strip().partition("=")
        if not name or not equals or not (amount.isascii() and amount.isdecimal()) or int(amount[:9]) > 1_000:
            raise BadInput.one(f"--node {text}: must be GPUs by type, e.g. a100=4 or a100=2,v100=2")
        if name in gpus:
            raise BadInput.one(f"--node {text}: {name} occurs twice")
        gpus[name] = int(amount)
    return gpus


def _options(texts: list[str]) -> dict[str, float]:
    options: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            options[name.strip()] = float(value) if "." in value or "e" in value.lower() else int(value)
        except ValueError:
            equals = ""
        if not equals:
            raise BadInput.one(f"--set {text}: must be a name and a number, e.g. min_run_s=10")
    return options


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    from levada.cli.logs import seconds

    return seconds(text, "--stuck-after")


def _times(texts: list[str] | None) -> dict[str, float] | None:
    """Return the retention times of `--keep` in seconds; None without the flag."""
    if not texts:
        return None
    from levada.cli.logs import seconds

    times: dict[str, float] = {}
    for text in texts:
        name, equals, time = text.partition("=")
        if not equals:
            raise BadInput.one(f"--keep {text}: must be a name and a time, e.g. events=30d")
        times[name.strip()] = seconds(time.strip(), f"--keep {name}")
    return times


def _serve_here(folder: Path, setup: dict[str, Any], output: TextOrJson | None) -> None:
    """Run the server in this process. Without *output* it does not print the token, to keep it out of logs."""
    import asyncio
    import logging

    import uvloop

    from levada.backends.local.processes import restrict_umask
    from levada.server.main import Setup, run

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr, force=True
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Files of a server are private to its owner; jobs must not inherit the URL of the store.
    restrict_umask()
    os.environ.pop("LEVADA_STORE", None)

    def ready(url: str, token: str) -> None:
        if output is None:
            logging.getLogger(__name__).info("listening on %s; the owner's token is in %s", url, folder)
        else:
            _print_address({"url": url, "token": token}, output)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(folder, Setup(**setup), ready))


def _print_address(server: dict[str, Any], output: TextOrJson) -> None:
    if output is TextOrJson.JSON:
        data_json({"url": server["url"], "token": server["token"]})
        sys.stdout.flush()
        return
    data(f"Levada is up at {server['url']}")
    data(f"token: {server['token']}")
    if gpus := server.get("gpus"):
        message(gpus)
    message("")
    message("Next: levada submit -f JOB.yaml   levada ls   levada top   levada down")
    sys.stdout.flush()
