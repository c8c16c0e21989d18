"""Fields of a pod template: command, environment, and resources."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from levada.jobfile.manifest import ManifestValue

#: Node labels with the GPU type, Levada's first.
ACCELERATOR = (
    "levada.dev/accelerator", "vodascheduler/accelerator", "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator",
)  # fmt: skip
#: Resource names of device plugins for a whole GPU.
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_][-.A-Za-z0-9_]*)\))")


class PodTemplate:
    """A pod template; its main container is the one named *main*, else the first."""

    def __init__(self, template: ManifestValue, main: str = "") -> None:
        self.template = template
        self.spec = template.at("spec")
        self._containers = list(self.spec.at("containers").items())
        if not self._containers:
            self.spec.at("containers").fault("must have at least 1 item")
        named = [container for container in self._containers if main and container.at("name").value == main]
        self.main = (named or self._containers or [ManifestValue(None)])[0]

    def command(self) -> list[str]:
        """Program and arguments; empty if only the image defines the program."""
        command = self.main.at("command").texts()
        # Arguments without a command are for the image's own program, which is unknown here.
        return [*command, *self.main.at("args").texts()] if command else []

    def env(self) -> dict[str, ManifestValue]:
        """Variables with plain values by name; as in Kubernetes, the last one wins."""
        variables: dict[str, ManifestValue] = {}
        for item in self.main.at("env").items():
            name = item.at("name").text()
            if name is None:
                item.at("name").fault("is required")
            elif not item.at("valueFrom").given:
                # As in Kubernetes, no value means an empty one.
                variables[name] = item.at("value").named(name, otherwise="")
        return variables

    def unresolved_env(self) -> str | None:
        """Why the environment needs a cluster: a variable with `valueFrom`. None if there is none."""
        names = [item.at("name").value for item in self.main.at("env").items() if item.at("valueFrom").given]
        how = "is set by valueFrom, which only Kubernetes can resolve; set a value"
        return f"{self.main.path}.env: {names[0]} {how}" if names else None

    def plain_env(self) -> dict[str, str]:
        """The variables with plain values, as text."""
        return {name: text for name, place in self.env().items() if (text := place.text()) is not None}

    def workdir(self) -> str | None:
        """The working directory."""
        return self.main.at("workingDir").text()

    def cpu(self) -> int:
        """1/1000ths of a core that the pod reserves."""
        return self._reserved("cpu", ManifestValue.cpu)

    def memory(self) -> int:
        """MiB that the pod reserves."""
        return self._reserved("memory", ManifestValue.memory)

    def gpus(self) -> int | None:
        """Whole GPUs that the pod reserves; None if not specified."""
        holders = [*self._containers, *self.spec.at("initContainers").items(), self.spec]
        names = [name for name in GPU_RESOURCES if any(_asked(holder, name).given for holder in holders)]
        return sum(self._reserved(name, _whole) for name in names) if names else None

    def _reserved(self, resource: str, read: Callable[[ManifestValue], int]) -> int:
        """The amount as kube-scheduler counts it.

        Containers and sidecars run together; an init container runs with the sidecars before it. The larger of both
        counts. A request of the whole pod replaces those of its containers; the overhead of its runtime class is added.
        """
        together = sum(read(_asked(container, resource)) for container in self._containers)
        sidecars = peak = 0
        for container in self.spec.at("initContainers").items():
            amount = read(_asked(container, resource))
            if container.at("restartPolicy").value == "Always":
                sidecars += amount
                amount = 0
            peak = max(peak, sidecars + amount)
        whole = _asked(self.spec, resource)
        total = read(whole) if whole.given else max(together + sidecars, peak)
        return total + read(self.spec.at("overhead", resource))

    def gpu_types(self) -> list[str]:
        """The GPU types that its node selector or its required node affinity allow; empty means any."""
        gpu_type = self.spec.at("nodeSelector").first_of(*ACCELERATOR).text()
        if gpu_type:
            return [gpu_type]
        required = self.spec.at("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
        terms = [_types_of(term) for term in required.at("nodeSelectorTerms").items()]
        # One of the terms must hold: a term that allows any type allows it for the pod.
        return list(dict.fromkeys(name for types in terms for name in types)) if all(terms) else []

    def grace_s(self) -> int | None:
        """Seconds from SIGTERM to SIGKILL."""
        return self.spec.at("terminationGracePeriodSeconds").whole()


def _asked(holder: ManifestValue, resource: str) -> ManifestValue:
    """The request of a container or pod, else its limit."""
    resources = holder.at("resources")
    request = resources.at("requests", resource)
    return request if request.given else resources.at("limits", resource)


def _whole(place: ManifestValue) -> int:
    return place.whole() or 0


def _types_of(term: ManifestValue) -> list[str]:
    """The GPU types that a term of a node affinity allows; empty means any."""
    for expression in term.at("matchExpressions").items():
        if expression.at("key").value in ACCELERATOR and expression.at("operator").value == "In":
            return expression.at("values").texts()
    return []


def expanded(command: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """*command* with `$(NAME)` expanded as in Kubernetes.

    Unknown names stay; `$$(NAME)` becomes `$(NAME)`.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return env.get(match[2], match[0])

    return tuple(_REFERENCE.sub(value, word) for word in command)
