"""Gavel's published results, and the settings that reproduce them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from levada.sim.metrics import Window
from levada.sim.settings import Settings

GOLDEN = Path(__file__).parents[1] / "golden"
#: Policies without an LP: no solver has a choice, so every figure must agree.
EXACT = ("allox", "fifo", "fifo_packed", "fifo_perf", "gandiva", "isolated")


@cache
def rows() -> dict[str, dict[str, Any]]:
    """Results by label, without invalid ones and those of other solvers than ECOS."""
    cases = json.loads((GOLDEN / "gavel_simulations.json").read_text())["cases"]
    return {case["label"]: case for case in cases if case["valid"] and case["solver"] == "ECOS"}


@cache
def schedules() -> dict[str, dict[str, Any]]:
    """Assignments by round, by label."""
    return json.loads((GOLDEN / "gavel_tiny_schedules.json").read_text())["cases"]


def settings_of(case: dict[str, Any], **more: Any) -> Settings:
    """Translate Gavel's command line."""
    words = case["command"].split()
    flags = dict(zip(words[2::2], words[3::2], strict=True))
    start, stop = int(flags.get("-s", 0)), flags.get("-e")
    per_server = map(int, flags.get("--num_gpus_per_server", "1:1:1").split(":"))
    policy = flags["-p"]
    settings: dict[str, Any] = {
        "policy": f"gavel-{policy}" if policy.startswith("fifo") else policy,
        "cluster": {name: count for name, count in case["cluster_spec"].items() if count},
        "gpus_per_node": dict(zip(("v100", "p100", "k80"), per_server, strict=True)),
        "trace": flags["-t"].removeprefix("data/gavel/"),
        "throughputs": flags.get("--throughputs_file", "simulation_throughputs.json"),
        "seed": int(flags["--seed"]),
        "round_s": float(flags.get("--time_per_iteration", 360)),
        "window": Window(start, None if stop is None else int(stop)),
        "mechanism": "gavel",
    }
    return Settings(**(settings | more))
