"""The `#SBATCH` lines of a Slurm script as fields of a job file."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from levada.errors import BadInput, Fault

#: Supported options: long name, short name, and whether a value follows.
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
    """The job name, spec fields and warnings of the lines."""

    name: str
    spec: dict[str, Any]
    warnings: list[str]


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises ValueError instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def read_directives(head: Sequence[tuple[int, str]], environment: Mapping[str, str]) -> Directives:
    """Parse the `#SBATCH` lines among *head* (number, text); raises BadInput.

    Unknown options are warnings.
    """
    parser = _Parser(prog="sbatch", add_help=False, allow_abbrev=False)
    for name, short, valued in _OPTIONS:
        names = [f"--{name}", *([f"-{short}"] if short else [])]
        if valued:
            parser.add_argument(*names, dest=name)
        else:
            parser.add_argument(*names, dest=name, action="store_true", default=None)
    options: dict[str, str] = {}
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
        # argparse parses `--time=--` as an empty list.
        parsed = {name: str(value) for name, value in vars(known).items() if isinstance(value, str | bool)}
        options |= parsed
        places |= dict.fromkeys(parsed, number)
        if unknown:
            warnings.append(f"line {number}: {' '.join(unknown)}: ignored: not supported{_instead(unknown)}")
    reading = _Reading(options, places, warnings, faults)
    spec = reading.spec(environment)
    if faults:
        raise BadInput(faults)
    return Directives(options.get("job-name", ""), spec, warnings)


#: Alternatives to unsupported options, by prefix.
_INSTEAD = {
    "--mail": "mail: use `notify`",
    "--output": "logs: `levada logs`",
    "--error": "logs: `levada logs`",
    "-o": "logs: `levada logs`",
    "-e": "logs: `levada logs`",
}


def _instead(unknown: Sequence[str]) -> str:
    hints = [hint for option, hint in _INSTEAD.items() if any(word.startswith(option) for word in unknown)]
    return f" ({'; '.join(dict.fromkeys(hints))})" if hints else ""


class _Reading:
    """Converts options to fields, with their line numbers for faults."""

    def __init__(
        self, options: Mapping[str, str], places: Mapping[str, int], warnings: list[str], faults: list[Fault]
    ) -> None:
        self.options, self.places, self.warnings, self.faults = options, places, warnings, faults

    def spec(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """The spec of the job."""
        spec: dict[str, Any] = {}
        if not self.options:
            return spec
        nodes = self._whole("nodes", 1)
        tasks = self._whole("ntasks", nodes * self._whole("ntasks-per-node", 1))
        spec["workers"] = tasks
        self._gpus(spec, nodes, tasks)
        resources: dict[str, int | str] = {}
        if "cpus-per-task" in self.options:
            resources["cpu"] = self._whole("cpus-per-task", 1)
        if memory := self._memory(spec, nodes, tasks):
            resources["memory"] = f"{memory}Mi"
        if resources:
            spec["resources"] = resources
        if "time" in self.options and (seconds := self._time(self.options["time"])):
            spec["timeLimit"] = seconds
        if "partition" in self.options:
            spec["queue"], *others = self.options["partition"].split(",")
            if others:
                self._warn("partition", f"a job has one queue; using {spec['queue']}")
        if "array" in self.options:
            spec["array"] = self._array(self.options["array"])
        if "dependency" in self.options:
            spec["after"] = self._after(self.options["dependency"])
        if "requeue" in self.options:
            spec["preemptible"] = True
        if "no-requeue" in self.options:
            spec["preemptible"] = False
        if "chdir" in self.options:
            spec.setdefault("run", {})["workdir"] = self.options["chdir"]
        if "export" in self.options:
            spec.setdefault("run", {})["env"] = self._export(self.options["export"], environment)
        return spec

    def _fault(self, option: str, text: str) -> None:
        self.faults.append(Fault(f"line {self.places[option]}", f"--{option}: {text}"))

    def _warn(self, option: str, text: str) -> None:
        self.warnings.append(f"line {self.places[option]}: --{option}: {text}")

    def _whole(self, option: str, otherwise: int) -> int:
        text = self.options.get(option)
        if text is None:
            return otherwise
        # `--nodes=1-4` is a range; use its lower end.
        text = text.partition("-")[0] if option == "nodes" else text
        if not re.fullmatch(r"[1-9]\d{0,8}", text):
            self._fault(option, "must be a whole number, at least 1")
            return otherwise
        return int(text)

    def _gpus(self, spec: dict[str, Any], nodes: int, tasks: int) -> None:
        """GPUs per worker, from any of the options; 0 without one."""
        total: int | None = None
        for option, times in (("gpus-per-task", tasks), ("gpus", 1), ("gpus-per-node", nodes), ("gres", nodes)):
            text = self.options.get(option)
            if text is None:
                continue
            if option == "gres":
                asked = [part for part in text.split(",") if part.partition(":")[0] == "gpu"]
                if not asked:
                    self._warn("gres", "ignored: only gpu is supported")
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
            text = self.options.get(option)
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
        """Seconds of a Slurm time; None for no limit."""
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
        """Indices with steps expanded; a limit of concurrent tasks is ignored."""
        indices, percent, at_once = text.partition("%")
        if percent:
            self._warn("array", f"%{at_once} ignored: all tasks may run at once")
        parts = []
        for part in indices.split(","):
            ends, colon, step = part.partition(":")
            first, dash, last = ends.partition("-")
            if colon and dash and all(re.fullmatch(r"\d{1,6}", part) for part in (first, last, step)) and int(step):
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
                self._warn("dependency", f"{part}: ignored: only afterok is supported")
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
