"""What a pod template says of the processes it stands for: command, environment, and what one of them takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from levada.jobfile.manifest import Place

#: Labels of nodes that tell the GPU type, ours first.
ACCELERATOR = ("levada.dev/accelerator", "vodascheduler/accelerator")
#: What device plugins call a whole GPU.
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_][-.A-Za-z0-9_]*)\))")


class Pod:
    """A pod template; the container that counts is the one of *main*'s name, or the first."""

    def __init__(self, template: Place, main: str = "") -> None:
        self.template = template
        self.spec = template.at("spec")
        self._containers = list(self.spec.at("containers").items())
        if not self._containers:
            self.spec.at("containers").fault("must have at least 1 item")
        named = [each for each in self._containers if main and each.at("name").value == main]
        self.main = (named or self._containers or [Place(None)])[0]

    def command(self) -> list[str]:
        """Program and arguments as Kubernetes would start them; empty where only the image knows the program."""
        command = self.main.at("command").texts()
        # Arguments without a command are for the image's own program, which nobody here knows.
        return [*command, *self.main.at("args").texts()] if command else []

    def env(self) -> dict[str, Place]:
        """The variables with plain values, by name; the last of two of one name counts, as in Kubernetes."""
        found: dict[str, Place] = {}
        for item in self.main.at("env").items():
            name = item.at("name").text()
            if name is None:
                item.at("name").fault("is required")
            elif not item.at("valueFrom").given:
                # An empty value and no value at all are the same.
                found[name] = item.at("value").named(name, otherwise="")
        return found

    def borrowed_env(self) -> list[str]:
        """The variables whose values only a cluster knows."""
        return [str(item.at("name").value) for item in self.main.at("env").items() if item.at("valueFrom").given]

    def plain_env(self) -> dict[str, str]:
        """The variables with plain values, as text."""
        return {name: text for name, place in self.env().items() if (text := place.text()) is not None}

    def workdir(self) -> str | None:
        """The folder it starts in."""
        return self.main.at("workingDir").text()

    def cpu(self) -> int:
        """1/1000ths of a core that all containers ask for."""
        return sum(self._asked(each, "cpu").cpu() for each in self._containers)

    def memory(self) -> int:
        """MiB that all containers ask for."""
        return sum(self._asked(each, "memory").memory() for each in self._containers)

    def gpus(self) -> int | None:
        """Whole GPUs of all containers; None where nothing is said."""
        said = [
            place.whole() or 0
            for each in self._containers
            for name in GPU_RESOURCES
            if (place := self._asked(each, name)).given
        ]
        return sum(said) if said else None

    def gpu_types(self) -> list[str]:
        """The GPU type that its node selector demands."""
        selector = self.spec.at("nodeSelector")
        found = selector.first_of(*ACCELERATOR).text()
        return [found] if found else []

    def grace_s(self) -> int | None:
        """Seconds from SIGTERM to SIGKILL."""
        return self.spec.at("terminationGracePeriodSeconds").whole()

    def _asked(self, container: Place, resource: str) -> Place:
        """What a container requests; a limit alone is a request, too."""
        resources = container.at("resources")
        request = resources.at("requests", resource)
        return request if request.given else resources.at("limits", resource)


def expanded(command: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """*command* with `$(NAME)` replaced as Kubernetes does it: unknown names stay, `$$(NAME)` becomes `$(NAME)`."""

    def value(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return env.get(match[2], match[0])

    return tuple(_REFERENCE.sub(value, word) for word in command)
