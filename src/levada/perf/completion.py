"""Estimate missing profile values from similar workloads.

**Alone.** The logarithm of a rate is mostly a workload effect plus a (type, size) effect; the residual has low rank
(`factorization`). So a workload gets rates on types on which it was not measured. Sizes above 1 are completed only for
workloads that may have several workers.

**Pairs**, following Gavel's estimator. *References* are workloads whose mutual pairs were all measured. Other workloads
were measured with some references, on some types. The fingerprint of a workload has its relative speed next to each
reference, and the relative speed of each reference next to it. Missing values of all fingerprints are filled together,
and each workload is matched with the reference whose fingerprint has the smallest cosine distance. The relative speed
of x next to y is that of x next to the reference that matches y. Each size is completed separately.

Differences to Gavel: its fingerprint has only the first half, it uses the matches of both workloads, and it reads the
wrong columns if is_measured are fewer references than workloads. A workload without measured pairs remains unknown.

**Confidence** is 1 for measured values and at most 1/2 for completed ones: less if fewer cells were measured and, for
pairs, if the partner is less similar to its match.
"""

from typing import NamedTuple

import msgspec
import numpy as np

from levada.perf.factorization import complete, complete_sums
from levada.perf.index_map import NamesByNumber
from levada.perf.model import Bools, Floats, Ints
from levada.perf.profiles import ProfileModel, Profiles

#: Rates alone have few columns, so factors need strong regularization.
_ALONE_RIDGE = 0.1
#: Number of measured cells of a workload at which a completed value has half of the maximum confidence.
_EVEN_CELLS = 3.0
_MAX_CONFIDENCE = 0.5


class Completion(NamedTuple):
    """Completed profiles, and the confidence of each cell."""

    profiles: Profiles
    #: By workload, type and size.
    alone: Floats
    #: By type, size, workload a and workload b.
    together: Floats


def measured(profiles: Profiles, references: Ints, share: float, rng: np.random.Generator) -> Profiles:
    """Simulate a profiler: keeps all pairs of *references*, and other pairs with a reference with probability *share*.

    A measured pair has the rates of both. All rates alone are relative.
    """
    count = len(profiles.workloads)
    together = profiles.together
    if together is None:
        return profiles
    is_reference = np.zeros(count, np.bool_)
    is_reference[references] = True
    # By type, size, workload and reference, each cell independently; the columns of the table are all workloads.
    seen = np.zeros(together.shape, np.bool_)
    drawn = rng.random((*together.shape[:3], len(references))) < share
    seen[..., references] = drawn | is_reference[:, None]
    seen |= seen.swapaxes(2, 3)
    return msgspec.structs.replace(profiles, together=np.where(seen, together, np.nan))


def completed(
    profiles: Profiles, rng: np.random.Generator, *, references: Ints | None = None, distributed: Bools | None = None
) -> Completion:
    """Fill missing values of *profiles* where possible; measured values are unchanged.

    *references* default to a greedy choice of workloads with all mutual pairs measured, most measured cells first.
    *distributed* (which workloads may have several workers) defaults to those measured with several.
    """
    alone, alone_confidence = _completed_alone(profiles, rng, distributed)
    together = profiles.together
    if together is None:
        filled = msgspec.structs.replace(profiles, alone=alone)
        return Completion(filled, alone_confidence, np.zeros((*alone.shape[1:], *alone.shape[:1] * 2)))
    rates, confidence = np.empty(together.shape), np.empty(together.shape)
    for at in range(len(profiles.sizes)):
        speed = alone[:, :, at].T[:, :, None]
        runs = speed > 0
        relative = np.where(runs, together[:, at] / np.where(runs, speed, 1.0), together[:, at])
        chosen = _references(relative) if references is None else references
        filled_relative, confidence[:, at] = _completed_pairs(relative, chosen, rng)
        rates[:, at] = np.where(np.isnan(together[:, at]), filled_relative * speed, together[:, at])
        # The confidence of a pair is at most that of the rate alone.
        sure = alone_confidence[:, :, at].T[:, :, None]
        confidence[:, at] = np.where(np.isnan(together[:, at]), confidence[:, at] * sure, 1.0)
    confidence[np.isnan(rates)] = 0.0
    filled = msgspec.structs.replace(profiles, alone=alone, together=rates)
    return Completion(filled, alone_confidence, confidence)


def _completed_alone(profiles: Profiles, rng: np.random.Generator, distributed: Bools | None) -> tuple[Floats, Floats]:
    alone = profiles.alone
    rows = len(alone)
    may_grow = profiles.distributed() if distributed is None else distributed
    with np.errstate(divide="ignore"):
        logs = np.log(np.where(alone > 0, alone, np.nan))
    filled = np.exp(complete_sums(logs.reshape(rows, -1), rng, ridge=_ALONE_RIDGE).reshape(alone.shape))
    wanted = may_grow[:, None, None] | (np.array(profiles.sizes) == 1)
    result = np.where(np.isnan(alone), np.where(wanted, filled, np.nan), alone)
    cells = (alone > 0).sum(axis=(1, 2))[:, None, None]
    trust = np.where(np.isnan(result), 0.0, _trust(cells))
    return result, np.where(np.isnan(alone), trust, 1.0)


def _completed_pairs(relative: Floats, references: Ints, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Relative speeds by type, workload and partner, and their confidence."""
    count = relative.shape[1]
    prints = fingerprints(relative, references)
    cells = (~np.isnan(prints)).sum(axis=1)
    if not len(references) or not cells.any():
        return np.full(relative.shape, np.nan), np.zeros(relative.shape)
    complete_prints = complete(prints, rng)
    complete_prints = np.where(np.isnan(prints), np.clip(complete_prints, 0.0, 1.0), complete_prints)
    match, distance = nearest(complete_prints, complete_prints[references])
    match[references], distance[references] = np.arange(len(references)), 0.0
    beside = complete_prints[:, : relative.shape[0] * len(references)].reshape(
        count, relative.shape[0], len(references)
    )
    filled = beside[:, :, match].transpose(1, 0, 2)
    unmeasured = cells == 0
    unknown = unmeasured[:, None] | unmeasured
    sure = _trust(np.minimum(cells[:, None], cells)) * (1.0 - distance)
    return np.where(unknown, np.nan, filled), np.broadcast_to(np.where(unknown, 0.0, sure), relative.shape)


def fingerprints(relative: Floats, references: Ints) -> Floats:
    """By workload: its relative speed next to each reference, then that of each reference next to it, by type."""
    count = relative.shape[1]
    own = relative[:, :, references].transpose(1, 0, 2).reshape(count, -1)
    partners = relative[:, references].transpose(2, 0, 1).reshape(count, -1)
    return np.concatenate([own, partners], axis=1)


def nearest(rows: Floats, references: Floats) -> tuple[Ints, Floats]:
    """The reference with the smallest cosine distance to each row (ties: first), and that distance."""
    lengths = np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(references, axis=1)
    distance = 1.0 - rows @ references.T / np.where(lengths > 0, lengths, 1.0)
    match = distance.argmin(axis=1)
    return match, np.clip(distance[np.arange(len(rows)), match], 0.0, 1.0)


def _references(relative: Floats) -> Ints:
    """Greedy choice of workloads with all mutual pairs measured on all types, most measured cells first."""
    is_measured = np.asarray((~np.isnan(relative)).all(axis=0))
    is_measured = is_measured & is_measured.T
    chosen: list[int] = []
    for row in np.argsort(-np.count_nonzero(~np.isnan(relative), axis=(0, 2)), kind="stable").tolist():
        if is_measured[row, [*chosen, row]].all():
            chosen.append(row)
    return np.array(sorted(chosen), np.int64)


def _trust(cells: Ints) -> Floats:
    return _MAX_CONFIDENCE * cells / (cells + _EVEN_CELLS)


class Completed(ProfileModel):
    """Throughput model from completed profiles, with confidence; learns the rates of pairs that run."""

    def __init__(
        self,
        profiles: Profiles,
        rng: np.random.Generator,
        workloads: NamesByNumber = (),
        types: NamesByNumber = (),
        *,
        references: Ints | None = None,
        distributed: Bools | None = None,
    ) -> None:
        """*profiles* has NaN for missing values; other arguments as for `completed`."""
        completion = completed(profiles, rng, references=references, distributed=distributed)
        super().__init__(completion.profiles, workloads, types)
        rows, columns, at = len(profiles.workloads), len(profiles.types), np.array(profiles.sizes, np.int64)
        self._confidence = _expand_confidence(self._confidence, completion.alone, at)
        self._pair_confidence = np.zeros((rows + 1, rows + 1, columns + 1, self._width))
        self._pair_confidence = _expand_confidence(self._pair_confidence, completion.together.transpose(2, 3, 0, 1), at)

    def pair_confidence(self, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """How well the rates of both are known, in a last axis of length 2; 1 = measured, 0 = unknown."""
        return self._lookup_pairs(self._pair_confidence, a, b, gpu_types, sizes)

    def observe_pairs(self, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints, rates: Floats) -> None:
        """Replace the rates of pairs by observed ones; the last axis of *rates* is for a and b."""
        if self._together is None:
            self._together = np.zeros_like(self._pair_confidence)
        cells_ab, cells_ba = np.broadcast_arrays(*self._pair_cells(a, b, gpu_types, sizes))
        first, second = np.broadcast_arrays(self._row_of_job.find(a), self._row_of_job.find(b))
        known = (first < len(self.profiles.workloads)) & (second < len(self.profiles.workloads))
        known = np.broadcast_to(known, cells_ab.shape)
        seen = np.broadcast_to(rates, (*cells_ab.shape, 2))
        # Copies share these arrays: replace them.
        together, confidence = self._together.copy(), self._pair_confidence.copy()
        for cells, member in ((cells_ba, 1), (cells_ab, 0)):
            together.reshape(-1)[cells[known]] = seen[known][:, member]
            confidence.reshape(-1)[cells[known]] = 1.0
        self._together, self._pair_confidence = together, confidence


def _expand_confidence(table: Floats, known: Floats, at: Ints) -> Floats:
    """Confidence at all sizes: *known* at the sizes *at*, elsewhere half of that of the next smaller size."""
    result = table.copy()
    part = result[tuple(slice(0, length) for length in known.shape[:-1])]
    below = np.searchsorted(at, np.arange(table.shape[-1]), side="right") - 1
    half = np.where(below >= 0, known[..., np.maximum(below, 0)] / 2, 0.0)
    part[...] = half
    part[..., at] = known
    return result
