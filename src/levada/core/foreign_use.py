"""Foreign pods and processes by id, with an index by node."""

from __future__ import annotations

from collections.abc import Iterable

from levada.core.cluster import Foreign


class ForeignUse(dict[str, Foreign]):
    """Changed only by assignment and `remove`, which take time per entry of the node, not per entry."""

    def __init__(self, pods: Iterable[Foreign] = ()) -> None:
        super().__init__()
        #: Ids by name of the node, None = waiting; tuples are replaced, never written to.
        self._on: dict[str | None, tuple[str, ...]] = {}
        for pod in pods:
            self[pod.id] = pod

    def __setitem__(self, name: str, foreign: Foreign) -> None:
        self.remove(name)
        super().__setitem__(name, foreign)
        self._on[foreign.node] = (*self._on.get(foreign.node, ()), name)

    def remove(self, name: str) -> Foreign | None:
        """Remove and return an entry; None if there is none."""
        foreign = super().pop(name, None)
        if foreign is not None:
            self._on[foreign.node] = tuple(other for other in self._on[foreign.node] if other != name)
            if not self._on[foreign.node]:
                del self._on[foreign.node]
        return foreign

    def on(self, node: str | None) -> list[Foreign]:
        """All entries of a node, or all that wait for capacity, in order of arrival."""
        return [self[name] for name in self._on.get(node, ())]

    def waiting(self) -> tuple[Foreign, ...]:
        """Serving pods that wait for capacity, highest priority first."""
        pods = (pod for pod in self.on(None) if pod.serving)
        return tuple(sorted(pods, key=lambda pod: (-pod.priority, pod.created, pod.id)))

    def copy(self) -> ForeignUse:
        """An independent copy."""
        twin = ForeignUse()
        twin.update(self)
        twin._on = self._on.copy()
        return twin
