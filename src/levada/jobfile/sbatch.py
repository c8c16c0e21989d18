"""The `#SBATCH` lines of a script for Slurm, in the terms of a job file."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from levada.errors import BadInput, Fault

#: What is understood: long name, short name, and whether a value follows.
_OPTIONS = (
    ("job-name", "J", True), ("nodes", "N", True), ("ntasks", "n", True), ("ntasks-per-node", "", True),
    ("gpus", "G", True), ("gres", "", True), ("gpus-per-node", "", True), ("gpus-per-task", "", True),
    ("cpus-per-task", "c", True), ("mem", "", True), ("mem-per-cpu", "", True), ("mem-per-gpu", "", True),
    ("time", "t", True), ("partition", "p", True), ("array", "a", True), ("dependency", "d", True),
    ("requeue", "", False), ("no-requeue", "", False), ("chdir", "D", True), ("export", "", True),
)  # fmt: skip
_TIME = re.compile(
    r"(?:(?P<d>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?|(?P<a>\d+)(?::(?P<b>\d+)(?::(?P<c>\d+))?)?)"
)
_MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)


class Directives(NamedTuple):
    """What the lines ask for."""

    name: str
    spec: dict[str, Any]
    warnings: list[str]


class _Parser(argparse.ArgumentParser):
    """Raises what the caller turns into a fault, instead of leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def read_directives(head: Sequence[tuple[int, str]], environment: Mapping[str, str]) -> Directives:
    """What the `#SBATCH` lines among *head* (number, text) say; raises BadInput. Unknown options are warnings."""
    parser = _Parser(prog="sbatch", add_help=False, allow_abbrev=False)
    for name, short, valued in _OPTIONS:
        names = [f"--{name}", *([f"-{short}"] if short else [])]
        if valued:
            parser.add_argument(*names, dest=name)
        else:
            parser.add_argument(*names, dest=name, action="store_true", default=None)
    given: dict[str, str] = {}
    places: dict[str, int] = {}
    warnings: list[str] = []
    faults: list[Fault] = []
    for number, line in head:
        if not re.match(r"#SBATCH\s", line):
            continue
        try:
            known, unknown = parser.parse_known_args(shlex.split(line.removeprefix("#SBATCH"), comments=True))
        except ValueError as error:
            faults.append(Fault(f"line {number}", f"cannot be read: {error}"))
            continue
        # argparse takes `--time=--` for a list of nothing.
        said = {name: str(value) for name, value in vars(known).items() if isinstance(value, str | bool)}
        given |= said
        places |= dict.fromkeys(said, number)
        if unknown:
            warnings.append(f"line {number}: {' '.join(unknown)}: Levada does not know this and goes on without it")
    reading = _Reading(given, places, warnings, faults)
    spec = reading.spec(environment)
    if faults:
        raise BadInput(faults)
    return Directives(given.get("job-name", ""), spec, warnings)


class _Reading:
    """Options turned into fields, with the line of each for faults."""

    def __init__(
        self, given: Mapping[str, str], places: Mapping[str, int], warnings: list[str], faults: list[Fault]
    ) -> None:
        self.given, self.places, self.warnings, self.faults = given, places, warnings, faults

    def spec(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """The spec of the job."""
        spec: dict[str, Any] = {}
        if not self.given:
            return spec
        nodes = self._whole("nodes", 1)
        tasks = self._whole("ntasks", nodes * self._whole("ntasks-per-node", 1))
        spec["workers"] = tasks
        self._gpus(spec, nodes, tasks)
        resources: dict[str, int | str] = {}
        if "cpus-per-task" in self.given:
            resources["cpu"] = self._whole("cpus-per-task", 1)
        if memory := self._memory(spec, nodes, tasks):
            resources["memory"] = f"{memory}Mi"
        if resources:
            spec["resources"] = resources
        if "time" in self.given and (seconds := self._time(self.given["time"])):
            spec["timeLimit"] = seconds
        if "partition" in self.given:
            spec["queue"], *others = self.given["partition"].split(",")
            if others:
                self._warn("partition", f"a job is in one queue; {spec['queue']} is taken")
        if "array" in self.given:
            spec["array"] = self._array(self.given["array"])
        if "dependency" in self.given:
            spec["after"] = self._after(self.given["dependency"])
        if "requeue" in self.given:
            spec["preemptible"] = True
        if "no-requeue" in self.given:
            spec["preemptible"] = False
        if "chdir" in self.given:
            spec.setdefault("run", {})["workdir"] = self.given["chdir"]
        if "export" in self.given:
            spec.setdefault("run", {})["env"] = self._export(self.given["export"], environment)
        return spec

    def _fault(self, option: str, text: str) -> None:
        self.faults.append(Fault(f"line {self.places[option]}", f"--{option}: {text}"))

    def _warn(self, option: str, text: str) -> None:
        self.warnings.append(f"line {self.places[option]}: --{option}: {text}")

    def _whole(self, option: str, otherwise: int) -> int:
        text = self.given.get(option)
        if text is None:
            return otherwise
        # `--nodes=1-4` is a range; its lower end is what is needed.
        text = text.partition("-")[0] if option == "nodes" else text
        if not re.fullmatch(r"[1-9]\d{0,8}", text):
            self._fault(option, "must be a whole number, at least 1")
            return otherwise
        return int(text)

    def _gpus(self, spec: dict[str, Any], nodes: int, tasks: int) -> None:
        """GPUs per worker, from whichever way they are asked for; none without any."""
        total: int | None = None
        for option, times in (("gpus-per-task", tasks), ("gpus", 1), ("gpus-per-node", nodes), ("gres", nodes)):
            text = self.given.get(option)
            if text is None:
                continue
            if option == "gres":
                asked = [part for part in text.split(",") if part.partition(":")[0] == "gpu"]
                if not asked:
                    self._warn("gres", "only gpu is known, and this is left out")
                    continue
                text = asked[0].partition(":")[2] or "1"
            gpu_type, _, number = text.rpartition(":")
            if not re.fullmatch(r"\d{1,6}", number):
                self._fault(option, "must be a number of GPUs, e.g. 4 or a100:4")
                continue
            total = int(number) * times
            if gpu_type:
                spec["gpuTypes"] = [gpu_type]
            if total % tasks:
                self._fault(option, f"{total} GPUs cannot be divided evenly among {tasks} tasks")
            break
        spec["gpusPerWorker"] = (total or 0) // tasks

    def _memory(self, spec: Mapping[str, Any], nodes: int, tasks: int) -> int | None:
        """MiB per worker."""
        per_task = {"mem": nodes / tasks, "mem-per-cpu": self._whole("cpus-per-task", 1),
                    "mem-per-gpu": spec["gpusPerWorker"]}  # fmt: skip
        for option, times in per_task.items():
            text = self.given.get(option)
            if text is None:
                continue
            match = _MEMORY.fullmatch(text)
            if match is None:
                self._fault(option, "must be an amount of memory, e.g. 16G")
                return None
            kib = int(match[1]) * 1024 ** "KMGT".index(match[2].upper() or "M")
            return max(int(kib * times) // 1024, 0)
        return None

    def _time(self, text: str) -> float | None:
        """Seconds of Slurm's ways to write a time; None where there is no limit."""
        if text.upper() in ("UNLIMITED", "INFINITE", "0"):
            return None
        match = _TIME.fullmatch(text)
        if match is None:
            self._fault("time", "must be a time, e.g. 30 (minutes), 12:00:00 or 2-12")
            return None
        part = {name: int(value) for name, value in match.groupdict(default="0").items()}
        if match["d"] is not None:
            return float(part["d"] * 86400 + part["dh"] * 3600 + part["dm"] * 60 + part["ds"])
        if match["c"] is not None:
            return float(part["a"] * 3600 + part["b"] * 60 + part["c"])
        return float(part["a"] * 60 + part["b"])

    def _array(self, text: str) -> str:
        """Indices without a step; a limit of how many run at once is left to the policy."""
        indices, percent, _ = text.partition("%")
        if percent:
            self._warn("array", "how many run at once is the policy's affair; the part after % is left out")
        parts = []
        for part in indices.split(","):
            ends, colon, step = part.partition(":")
            first, dash, last = ends.partition("-")
            if colon and dash and all(re.fullmatch(r"\d{1,6}", each) for each in (first, last, step)) and int(step):
                parts += [str(index) for index in range(int(first), int(last) + 1, int(step))]
            else:
                parts.append(part)
        return ",".join(parts)

    def _after(self, text: str) -> list[str]:
        after: list[str] = []
        for part in text.split(","):
            kind, _, ids = part.partition(":")
            if kind == "afterok" and ids:
                after += ids.split(":")
            else:
                self._warn("dependency", f"{part}: only afterok is known, and this is left out")
        return after

    def _export(self, text: str, environment: Mapping[str, str]) -> dict[str, str]:
        env: dict[str, str] = {}
        for part in text.split(","):
            name, separator, value = part.partition("=")
            if part == "ALL":
                env |= environment
            elif separator:
                env[name] = value
            elif part not in ("NONE", "NIL", ""):
                if name in environment:
                    env[name] = environment[name]
                else:
                    self._warn("export", f"{name} is not set here")
        return env
