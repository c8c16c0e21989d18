"""`levada up|down|serve`: the server of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli.output import TextOrJson, chatter, data, data_json
from levada.errors import BadInput, LevadaError, Refused

if TYPE_CHECKING:
    from levada.server.home import Home

State = Annotated[
    str | None,
    typer.Option(
        "--state",
        "--state-dir",
        metavar="DIR",
        help="The server's folder; several servers live side by side in folders of their own.",
        show_default="$XDG_STATE_HOME/levada",
    ),
]
Node = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="TYPE=N,…", help="A pretend node with its GPUs by type; may be repeated."),
]
Nodes = Annotated[int | None, typer.Option("--nodes", help="So many pretend nodes.", show_default="2")]
GpusPerNode = Annotated[int | None, typer.Option("--gpus-per-node", help="GPUs of each of them.", show_default="4")]
GpuType = Annotated[str | None, typer.Option("--gpu-type", help="The type of their GPUs.", show_default="gpu")]
Host = Annotated[str, typer.Option("--host", help="The address to listen on.")]
Port = Annotated[int | None, typer.Option("--port", help="The port; 0 takes a free one.", show_default="7373")]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="LEVADA_STORE",
        help="The database: sqlite:///FILE or postgresql://…; one with a password is better in LEVADA_STORE.",
        show_default=False,
    ),
]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        "--checkpoints", metavar="DIR", help="A folder for checkpoints that all machines share.", show_default=False
    ),
]
PolicyName = Annotated[
    str | None, typer.Option("--policy", help="The policy of a new server.", show_default="elastic-fifo")
]
Option = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="An option of the engine, as min_run_s=10; may be repeated."),
]
StuckAfter = Annotated[
    str | None,
    typer.Option(
        "--stuck-after",
        metavar="TIME",
        help="Warn of jobs that make no step, or whose GPUs do nothing, for so long; 0 for never.",
        show_default="30m",
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        metavar="WHAT=TIME",
        help="How long events, jobs that are over, or the audit are kept, as events=30d; may be repeated.",
        show_default="events=90d, jobs=400d, audit=400d",
    ),
]
Certfile = Annotated[str | None, typer.Option("--certfile", help="TLS certificate.", show_default=False)]
Keyfile = Annotated[str | None, typer.Option("--keyfile", help="Its private key.", show_default=False)]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Listen without TLS where others can reach it: something else encrypts.")
]

TakeOver = Annotated[
    str | None,
    typer.Option(
        "--take-over",
        metavar="HOST",
        help="Nothing runs any more of what the server of this machine had, which acted on the store before: start its "
        "jobs again here.",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="A name that a proxy before it asks for; may be repeated.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the verbs."""
    app.command("up")(up)
    app.command("down")(down)
    app.command("serve")(serve)


def up(
    state: State = None,
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
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, and stop everything at Ctrl-C.")] = False,
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="How to print it.")] = TextOrJson.TEXT,
) -> None:
    """Start the server of this machine, and print its address and token.

    It goes on in the background; `levada down` stops it. GPUs are those of this machine, or pretend ones as declared.
    """
    nodes_asked = declared(node, nodes, gpus_per_node, gpu_type)
    setup: dict[str, Any] = {
        "host": host,
        "port": _valid(port),
        "store": _same_store(store),
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
        _stay(_folder(state), setup, output)
        return
    from levada.cli.interrupts import tidied_up
    from levada.cli.starting import bring_up
    from levada.server.home import SERVER, Home

    home = Home(_folder(state))
    with tidied_up():
        bring_up(home, setup)
    _tell(home.read(SERVER), output)


def _host(name: str | None) -> str | None:
    if name is not None and not name.strip():
        raise BadInput.one("--take-over: must be the host that a server which refuses to start has named")
    return name


def serve(
    state: State = None,
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
    wait: Annotated[bool, typer.Option("--wait", help="Stand by while another server acts on the store.")] = False,
    take_over: TakeOver = None,
) -> None:
    """Serve in the foreground, as service managers want it: SIGTERM leaves jobs running for the next start."""
    nodes_asked = declared(node, nodes, gpus_per_node, gpu_type)
    setup = {
        "host": host,
        "port": _valid(port),
        "store": _same_store(store),
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
    }
    _stay(_folder(state), setup, None)


def down(
    state: State = None,
    stop_jobs: Annotated[
        bool, typer.Option("--stop-jobs", help="Stop jobs; `up` restarts them from their checkpoints.")
    ] = False,
    leave_jobs: Annotated[bool, typer.Option("--leave-jobs", help="Jobs run on; the next `up` finds them.")] = False,
) -> None:
    """Stop the server and its jobs; `levada up` restarts jobs from their last checkpoint.

    A job without a checkpoint starts from the beginning then: `--leave-jobs` lets jobs run on without the server.
    """
    from levada.cli.starting import take_down
    from levada.server.home import Home

    if stop_jobs and leave_jobs:
        raise BadInput.one("--stop-jobs or --leave-jobs, not both")
    home = Home(_folder(state))
    if home.holder() is None:
        chatter("no server is up")
        return
    if not stop_jobs and not leave_jobs:
        _ask_for_others(home)
    take_down(home, leave_jobs=leave_jobs)
    jobs = "its jobs run on" if leave_jobs else "the next `levada up` restarts its jobs from their last checkpoints"
    chatter(f"the server is down; {jobs}")


def _ask_for_others(home: Home) -> None:
    """Jobs of other people are not stopped in passing."""
    import getpass

    from levada.sdk.client import Client
    from levada.sdk.place import owners

    # Whoever may stop a server is its owner, whatever token is in the environment.
    there = owners(str(home.folder))
    if there is None:
        return
    try:
        asked = Client(*there, timeout_s=10.0, patience_s=0.0, insecure=True)
        running = asked.jobs(phases=["Running", "Starting", "Resizing"])
    except LevadaError:
        return  # who cannot be asked cannot be spared
    others = sorted({job["user"] for job in running} - {getpass.getuser()})
    if others:
        raise Refused(f"jobs of {', '.join(others)} run; say --stop-jobs or --leave-jobs")


def _folder(state: str | None) -> Path:
    from levada.sdk.place import state_dir

    return Path(state_dir(state)).absolute()


def _valid(port: int | None) -> int | None:
    if port is not None and not 0 <= port <= 65535:
        raise BadInput.one("--port: must be 0 to 65535")
    return port


def _absolute(path: str | None) -> str | None:
    """The same file for a server, whose working folder is another one."""
    return None if path is None else os.path.abspath(path)


def _same_store(url: str | None) -> str | None:
    """As `_absolute`, for a file of SQLite: `sqlite:///levada.db` lies in the folder of who says so."""
    mark = "sqlite:///"
    if url is None or not url.startswith(mark):
        return url
    return mark + os.path.abspath(url.removeprefix(mark))


def declared(
    node: list[str] | None, nodes: int | None, gpus_per_node: int | None, gpu_type: str | None
) -> list[dict[str, int]] | None:
    """The pretend nodes that are asked for; None where nothing is said."""
    if node:
        if nodes is not None or gpus_per_node is not None or gpu_type is not None:
            raise BadInput.one("--node declares single nodes; leave out --nodes, --gpus-per-node and --gpu-type")
        return [_gpus(each) for each in node]
    if nodes is None and gpus_per_node is None and gpu_type is None:
        return None
    count, size = 2 if nodes is None else nodes, 4 if gpus_per_node is None else gpus_per_node
    if not 1 <= count <= 10_000:
        raise BadInput.one("--nodes: must be 1 to 10,000")
    if not 0 <= size <= 1_000:
        raise BadInput.one("--gpus-per-node: must be 0 to 1,000")
    return [{gpu_type or "gpu": size} for _ in range(count)]


def _gpus(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equals, amount = part.strip().partition("=")
        if not name or not equals or not (amount.isascii() and amount.isdecimal()) or int(amount[:9]) > 1_000:
            raise BadInput.one(f"--node {text}: must be GPUs by type, as in a100=4 or a100=2,v100=2")
        if name in found:
            raise BadInput.one(f"--node {text}: {name} is there twice")
        found[name] = int(amount)
    return found


def _options(given: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in given:
        name, equals, value = text.partition("=")
        try:
            found[name.strip()] = float(value) if "." in value or "e" in value.lower() else int(value)
        except ValueError:
            equals = ""
        if not equals:
            raise BadInput.one(f"--set {text}: must be a name and a number, as in min_run_s=10")
    return found


def _seconds(given: str | None) -> float | None:
    if given is None:
        return None
    from levada.cli.logs import seconds

    return seconds(given, "--stuck-after")


def _times(given: list[str] | None) -> dict[str, float] | None:
    """How long things are kept, by their name; None where nothing is said."""
    if not given:
        return None
    from levada.cli.logs import seconds

    found: dict[str, float] = {}
    for text in given:
        name, equals, time = text.partition("=")
        if not equals:
            raise BadInput.one(f"--keep {text}: must be a name and a time, as in events=30d")
        found[name.strip()] = seconds(time.strip(), f"--keep {name}")
    return found


def _stay(folder: Path, setup: dict[str, Any], output: TextOrJson | None) -> None:
    """Serves in this process. Without *output* the token stays in the server's folder: a log is no place for it."""
    import asyncio
    import logging

    import uvloop

    from levada.backends.local.processes import keep_private
    from levada.server.main import Setup, run

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr, force=True
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # What a server writes is for its owner, and the address of its store for nobody that it starts.
    keep_private()
    os.environ.pop("LEVADA_STORE", None)

    def ready(url: str, token: str) -> None:
        if output is None:
            logging.getLogger(__name__).info("up at %s; the owner's token is in %s", url, folder)
        else:
            _tell({"url": url, "token": token}, output)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(folder, Setup(**setup), ready))


def _tell(told: dict[str, Any], output: TextOrJson) -> None:
    if output is TextOrJson.JSON:
        data_json({"url": told["url"], "token": told["token"]})
        sys.stdout.flush()
        return
    data(f"Levada is up at {told['url']}")
    data(f"token: {told['token']}")
    chatter("")
    chatter("Next: levada submit -f JOB.yaml   levada ls   levada top   levada down")
    sys.stdout.flush()
