"""Settings of a simulation, and parsers for the short syntaxes of its flags."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from levada.core.job import LARGEST_SIZE
from levada.errors import BadInput, Fault, did_you_mean
from levada.sim.metrics import ALL, Window
from levada.sim.simulation import Costs

Mechanism = Literal["default", "gavel"]
T = TypeVar("T")

#: Default number of GPUs of a node.
GPUS_PER_NODE = 4
#: Limits of settings, to catch typing errors.
MOST_GPUS = 1_000_000
MOST_JOBS = 100_000_000
_SHORTEST_ROUND_S, _LEAST_RATE, _MOST_RATE = 0.01, 1e-6, 1e9
_LONGEST_S = 1e10
_LEAST_HOURS, _MOST_HOURS = 0.001, 1e6
#: Restart costs from the throughput table; they include the stop.
BY_TABLE = Costs(start_s=None, resize_s=None, stop_s=0.0)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a simulation. The same settings give the same result."""

    policy: str
    #: GPUs by type.
    cluster: Mapping[str, int]
    #: GPUs of a node, by type; "" is the default for types that are not named, else 4.
    gpus_per_node: Mapping[str, int] = {}
    #: Jobs from a file, or from a generator.
    trace: str | None = None
    workload: str | None = None
    #: Number of jobs; None: all of the trace, or as many as needed until those of the window are done.
    jobs: int | None = None
    #: Jobs per hour; None or 0: all at time 0.
    rate: float | None = None
    seed: int = 0
    multi_gpu: bool = False
    priorities: bool = False
    slos: bool = False
    fixed_duration_s: float | None = None
    #: Begin with enough jobs at time 0 to fill each GPU type.
    steady_state: bool = False
    #: A file or folder; None: the catalogue.
    throughputs: str | None = None
    #: The policy knows only part of the pair rates: `reference_models` workloads are measured with each other, and all
    #: others with those with probability `profiling`.
    profiling: float = 1.0
    reference_models: int | None = None
    mechanism: Mechanism = "default"
    round_s: float | None = None
    global_queue: bool = False
    #: Follow shares exactly, without rounds.
    ideal: bool = False
    policy_options: Mapping[str, Any] = {}
    window: Window = ALL
    #: $ per GPU-hour.
    prices: Mapping[str, float] = {}
    prices_dir: str | None = None
    restart_cost: Costs = BY_TABLE
    #: Mean seconds between two failures of a node, and the duration of a repair.
    failures_every_s: float | None = None
    repair_s: float = 3600.0
    #: File for one line per round, and file for the state of an interrupted run.
    rounds: str | None = None
    checkpoint: str | None = None

    @property
    def gpus(self) -> int:
        """Total GPUs of the cluster."""
        return sum(self.cluster.values())


def check(settings: Settings) -> None:
    """Raise BadInput with all faults of *settings*."""
    faults = [text for wrong, text in _rules(settings) if wrong]
    faults += _unknown_types("--gpus-per-node", settings.gpus_per_node, settings.cluster)
    faults += _unknown_types("--prices", settings.prices, settings.cluster)
    if faults:
        raise BadInput(Fault("", text) for text in faults)


def _rules(s: Settings) -> list[tuple[bool, str]]:
    endless = s.trace is None and s.jobs is None
    generator_flags = {
        "--rate": s.rate is not None,
        "--multi-gpu": s.multi_gpu,
        "--priorities": s.priorities,
        "--slos": s.slos,
        "--fixed-duration": s.fixed_duration_s is not None,
        "--steady-state": s.steady_state,
    }
    used = [flag for flag, is_used in generator_flags.items() if is_used]
    every, repair = s.failures_every_s, s.repair_s
    return [
        (s.trace is None and s.workload is None, "no jobs: add --trace FILE or --workload NAME"),
        (s.trace is not None and s.workload is not None, "--trace and --workload are mutually exclusive"),
        (s.trace is not None and bool(used), f"{', '.join(used)}: only with --workload, not with --trace"),
        (s.jobs is not None and not 1 <= s.jobs <= MOST_JOBS, f"--jobs must be from 1 to {MOST_JOBS}"),
        ((s.window.stop or 0) > MOST_JOBS, f"--window must end at {MOST_JOBS} or before"),
        (
            s.rate is not None and s.rate != 0 and not _LEAST_RATE <= s.rate <= _MOST_RATE,
            f"--rate must be a number of jobs per hour, 0 or from {_LEAST_RATE:g} to {_MOST_RATE:g}",
        ),
        (
            endless and s.workload is not None and s.window.stop is None,
            "number of jobs is missing: add --jobs N, or --window A:B to run until those jobs are done",
        ),
        (
            endless and s.window.stop is not None and s.rate == 0,
            "--rate 0 submits all jobs at time 0 and needs --jobs N",
        ),
        (
            s.jobs is not None and 1 <= s.jobs <= s.window.start,
            f"--window {s.window} is beyond the last of the {s.jobs} jobs",
        ),
        (not 0 < s.profiling <= 1, "--profiling must be above 0 and at most 1"),
        (
            s.round_s is not None and not _SHORTEST_ROUND_S <= s.round_s <= _LONGEST_S,
            f"--round must be a number of seconds from {_SHORTEST_ROUND_S:g} to {_LONGEST_S:g}",
        ),
        (
            s.fixed_duration_s is not None and not 0 < s.fixed_duration_s <= _LONGEST_S,
            f"--fixed-duration must be a number of seconds above 0, at most {_LONGEST_S:g}",
        ),
        (s.global_queue and s.mechanism != "gavel", "--global-queue needs --mechanism gavel"),
        (s.ideal and s.mechanism == "gavel", "--ideal and --mechanism gavel are mutually exclusive"),
        (s.ideal and s.rounds is not None, "--ideal has no rounds; remove --rounds"),
        (bool(s.prices) and s.prices_dir is not None, "--prices and --prices-dir are mutually exclusive"),
        (
            every is not None and not _LEAST_HOURS <= every / 3600.0 <= _MOST_HOURS,
            f"--failures must be a number of hours from {_LEAST_HOURS:g} to {_MOST_HOURS:g}",
        ),
        (
            not 0 < repair / 3600.0 <= _MOST_HOURS,
            f"--repair must be a number of hours above 0, at most {_MOST_HOURS:g}",
        ),
        (
            every is not None and (s.ideal or s.mechanism == "gavel"),
            "--failures works only with the default mechanism, without --ideal and --mechanism gavel",
        ),
    ]


def _unknown_types(flag: str, values: Mapping[str, Any], cluster: Mapping[str, int]) -> list[str]:
    """One message per type that the cluster lacks, unless all types of the cluster are named, too.

    A sweep over several clusters names the types of all of them in one flag.
    """
    missing = [name for name in cluster if name not in values]
    unknown = [name for name in values if name and name not in cluster]
    has = f"it has {', '.join(cluster)}"
    return [f"{flag}: the cluster has no {name}{did_you_mean(name, missing, has)}" for name in unknown if missing]


# ------------------------------------------------------------------------------------------------------------- texts


def parse_cluster(text: str) -> dict[str, int]:
    """Parse GPUs by type, `v100=36,p100=36`; raises BadInput."""
    cluster = _pairs("--cluster", text, _whole, f"TYPE=GPUS, a whole number up to {MOST_GPUS}, as in v100=36,p100=36")
    cluster = {name: count for name, count in cluster.items() if count > 0}
    if not cluster:
        raise BadInput.one(f"--cluster {text!r} has no GPU")
    return cluster


def parse_gpus_per_node(text: str) -> dict[str, int]:
    """Parse GPUs per node, `4` for all types or `v100=8,k80=4`; raises BadInput."""
    how = f"a whole number from 1 to {LARGEST_SIZE}, or one for each type, as in v100=8,k80=4"
    if "=" not in text:
        text = f"={text}"
    counts = _pairs("--gpus-per-node", text, _whole, how)
    if not all(1 <= count <= LARGEST_SIZE for count in counts.values()):
        raise BadInput.one(f"--gpus-per-node must be {how}")
    return counts


def parse_prices(text: str) -> dict[str, float]:
    """Parse $ per GPU-hour by type, `v100=0.74,k80=0.135`; raises BadInput."""
    return _pairs("--prices", text, _amount, "TYPE=DOLLARS, 0 or more, as in v100=0.74,k80=0.135")


def parse_restart_cost(text: str) -> Costs:
    """Parse seconds: `30` (a start or resize) or `START:RESIZE:STOP`; raises BadInput."""
    parts = text.split(":")
    try:
        seconds = [_amount(part) for part in parts]
    except ValueError:
        seconds = []
    if len(seconds) == 1:
        return Costs(start_s=seconds[0], resize_s=seconds[0], stop_s=0.0)
    if len(seconds) == 3:
        return Costs(start_s=seconds[0], resize_s=seconds[1], stop_s=seconds[2])
    raise BadInput.one(f"--restart-cost {text!r} must be seconds, or START:RESIZE:STOP in seconds")


def parse_option(text: str) -> tuple[str, Any]:
    """Parse `name=value`; the value is JSON if it is valid JSON, else text. Raises BadInput."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadInput.one(f"--policy-option {text!r} must be NAME=VALUE")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


def _pairs(flag: str, text: str, read: Any, how: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        try:
            number = read(value)
        except ValueError:
            number = None
        if not equals or number is None or (not name.strip() and flag != "--gpus-per-node"):
            raise BadInput.one(f"{flag} {text!r}: {part!r} must be {how}")
        if name.strip() in values:
            raise BadInput.one(f"{flag} {text!r} names {name.strip()!r} twice")
        values[name.strip()] = number
    return values


def _whole(text: str) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,12}\s*", text) or int(text) > MOST_GPUS:
        raise ValueError(text)
    return int(text)


def _amount(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(text)
    return value
