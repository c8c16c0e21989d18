"""Map sparse numbers (jobs, workloads, GPU types) to integers."""

import numpy as np

from levada.perf.model import Ints

#: Keys are looked up in a dense array if at least 1 of this many numbers is a key.
_DENSE = 16
_NONE = np.zeros(0, np.int64)


class Lookup:
    """An immutable map of integers to integers >= 0; missing keys map to -1.

    Copies of a model share it. O(1) per lookup if keys are dense, else O(log n); O(n) per change.
    """

    __slots__ = ("_dense", "keys", "values")

    def __init__(self, keys: Ints = _NONE, values: Ints = _NONE) -> None:
        """*keys* are ascending and distinct."""
        self.keys = keys
        self.values = values
        self._dense: Ints | None = None

    def find(self, keys: Ints) -> Ints:
        """The value of each key, or -1."""
        keys = np.asarray(keys, np.int64)
        if not self.keys.size:
            return np.full(keys.shape, -1, np.int64)
        if self._dense is None and int(self.keys[-1]) - int(self.keys[0]) <= _DENSE * self.keys.size:
            # Filled before it is published: models in several threads share this map.
            dense = np.full(self.keys[-1] - self.keys[0] + 1, -1, np.int64)
            dense[self.keys - self.keys[0]] = self.values
            self._dense = dense
        if self._dense is not None:
            inside = (keys >= self.keys[0]) & (keys <= self.keys[-1])
            return np.where(inside, self._dense[np.where(inside, keys - self.keys[0], 0)], -1)
        at = np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)
        return np.where(self.keys[at] == keys, self.values[at], -1)

    def updated(self, keys: Ints, values: Ints) -> "Lookup":
        """This map with *keys* set to *values*; the last one wins if a key occurs twice."""
        beyond = not self.keys.size or not keys.size or keys[0] > self.keys[-1]
        if beyond and bool((keys[1:] > keys[:-1]).all()):
            return Lookup(np.concatenate([self.keys, keys]), np.concatenate([self.values, values]))
        all_keys = np.concatenate([self.keys, keys])
        all_values = np.concatenate([self.values, values])
        order = np.argsort(all_keys, kind="stable")
        all_keys, all_values = all_keys[order], all_values[order]
        last = np.append(all_keys[1:] != all_keys[:-1], True)[: all_keys.size]
        return Lookup(all_keys[last], all_values[last])

    def without(self, keys: Ints) -> "Lookup":
        """This map without *keys*; missing ones are ignored."""
        remains = np.isin(self.keys, keys, invert=True)
        return Lookup(self.keys[remains], self.values[remains])
