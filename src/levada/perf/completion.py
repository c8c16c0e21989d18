"""From few measurements to a whole table: what workloads that resemble each other tell about each other.

**Alone.** The logarithm of a rate is mostly the workload's part plus the (type, size)'s part; what is left has few
factors (`factors`). So a workload gets a rate on types it was never seen on. Sizes above 1 are completed only for
workloads that may have several workers.

**Pairs**, following Gavel's estimator. *References* are workloads of which every pair among them was measured. Any
other workload was measured with some of them, on some types. What it keeps of its speed beside each reference, and what
each reference keeps beside it, is its fingerprint; the holes of all fingerprints are filled together, and each workload
is matched with the reference whose fingerprint has the smallest cosine distance. Workload x beside y then keeps what x
keeps beside the reference that matches y. Each size is completed by itself.

Gavel's own fingerprint has only the first half, it takes both workloads' matches, and it reads its measurements from
the wrong columns as soon as there are fewer references than workloads. A workload that was measured with nobody stays
unknown.

**Confidence** is 1 for what was measured; what was completed has at most 1/2, less the fewer cells were measured, and
for pairs the less the partner resembles its match.
"""

from typing import NamedTuple

import msgspec
import numpy as np

from levada.perf.factors import complete, complete_sums
from levada.perf.growing import NameList
from levada.perf.model import Bools, Floats, Ints
from levada.perf.profiles import ProfileModel, Profiles

#: Rates alone have few columns, so that factors must explain much before they are believed.
_ALONE_RIDGE = 0.1
#: Measured cells of a workload at which a completed answer has half of the confidence that it can have at most.
_EVEN_CELLS = 3.0
_MOST_CONFIDENCE = 0.5


class Completion(NamedTuple):
    """A table without holes where anything could be said, and how well each cell is known."""

    profiles: Profiles
    #: By workload, type and size.
    alone: Floats
    #: By type, size, workload a and workload b.
    together: Floats


def measured(profiles: Profiles, references: Ints, share: float, rng: np.random.Generator) -> Profiles:
    """What a profiler sees that measures every pair of *references*, and others beside references with this chance.

    A pair that is measured tells the rates of both. Rates alone are all there.
    """
    count = len(profiles.workloads)
    together = profiles.together
    if together is None:
        return profiles
    is_reference = np.zeros(count, np.bool_)
    is_reference[references] = True
    # By type, size, workload and reference, each cell by itself; the table's columns are all workloads.
    seen = np.zeros(together.shape, np.bool_)
    drawn = rng.random((*together.shape[:3], len(references))) < share
    seen[..., references] = drawn | is_reference[:, None]
    seen |= seen.swapaxes(2, 3)
    return msgspec.structs.replace(profiles, together=np.where(seen, together, np.nan))


def completed(
    profiles: Profiles, rng: np.random.Generator, *, references: Ints | None = None, distributed: Bools | None = None
) -> Completion:
    """*profiles* with its holes filled as far as that is possible; what was measured stays, bit for bit.

    Without *references*, those are as many workloads with all their pairs measured as are found, best known first.
    Without *distributed*, workloads may have several workers that were measured with several.
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
        kept = np.where(runs, together[:, at] / np.where(runs, speed, 1.0), together[:, at])
        chosen = _references(kept) if references is None else references
        filled_kept, confidence[:, at] = _completed_pairs(kept, chosen, rng)
        rates[:, at] = np.where(np.isnan(together[:, at]), filled_kept * speed, together[:, at])
        # A pair cannot be known better than the rate that it is a part of.
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
    asked = may_grow[:, None, None] | (np.array(profiles.sizes) == 1)
    answer = np.where(np.isnan(alone), np.where(asked, filled, np.nan), alone)
    cells = (alone > 0).sum(axis=(1, 2))[:, None, None]
    trust = np.where(np.isnan(answer), 0.0, _trust(cells))
    return answer, np.where(np.isnan(alone), trust, 1.0)


def _completed_pairs(kept: Floats, references: Ints, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Parts of their speed that workloads keep, by type, workload and partner, and how sure that is."""
    count = kept.shape[1]
    prints = fingerprints(kept, references)
    cells = (~np.isnan(prints)).sum(axis=1)
    if not len(references) or not cells.any():
        return np.full(kept.shape, np.nan), np.zeros(kept.shape)
    whole = complete(prints, rng)
    whole = np.where(np.isnan(prints), np.clip(whole, 0.0, 1.0), whole)
    match, distance = nearest(whole, whole[references])
    match[references], distance[references] = np.arange(len(references)), 0.0
    beside = whole[:, : kept.shape[0] * len(references)].reshape(count, kept.shape[0], len(references))
    filled = beside[:, :, match].transpose(1, 0, 2)
    nothing = cells == 0
    unknown = nothing[:, None] | nothing
    sure = _trust(np.minimum(cells[:, None], cells)) * (1.0 - distance)
    return np.where(unknown, np.nan, filled), np.broadcast_to(np.where(unknown, 0.0, sure), kept.shape)


def fingerprints(kept: Floats, references: Ints) -> Floats:
    """One row per workload: what it keeps beside each reference, then what each keeps beside it, type by type."""
    count = kept.shape[1]
    own = kept[:, :, references].transpose(1, 0, 2).reshape(count, -1)
    theirs = kept[:, references].transpose(2, 0, 1).reshape(count, -1)
    return np.concatenate([own, theirs], axis=1)


def nearest(rows: Floats, references: Floats) -> tuple[Ints, Floats]:
    """For each row the reference with the smallest cosine distance, the first among equals, and that distance."""
    lengths = np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(references, axis=1)
    distance = 1.0 - rows @ references.T / np.where(lengths > 0, lengths, 1.0)
    match = distance.argmin(axis=1)
    return match, np.clip(distance[np.arange(len(rows)), match], 0.0, 1.0)


def _references(kept: Floats) -> Ints:
    """Workloads of which all pairs among them were measured on all types; those with most measured cells first."""
    there = np.asarray((~np.isnan(kept)).all(axis=0))
    there = there & there.T
    chosen: list[int] = []
    for row in np.argsort(-np.count_nonzero(~np.isnan(kept), axis=(0, 2)), kind="stable").tolist():
        if there[row, [*chosen, row]].all():
            chosen.append(row)
    return np.array(sorted(chosen), np.int64)


def _trust(cells: Ints) -> Floats:
    return _MOST_CONFIDENCE * cells / (cells + _EVEN_CELLS)


class Completed(ProfileModel):
    """Fills the holes of its profiles, says how sure it is, and learns the pairs that run."""

    def __init__(
        self,
        profiles: Profiles,
        rng: np.random.Generator,
        workloads: NameList = (),
        types: NameList = (),
        *,
        references: Ints | None = None,
        distributed: Bools | None = None,
    ) -> None:
        """*profiles* has NaN for what was not measured; the rest as for `completed`."""
        completion = completed(profiles, rng, references=references, distributed=distributed)
        super().__init__(completion.profiles, workloads, types)
        rows, columns, at = len(profiles.workloads), len(profiles.types), np.array(profiles.sizes, np.int64)
        self._confidence = _stairs(self._confidence, completion.alone, at)
        self._pair_confidence = np.zeros((rows + 1, rows + 1, columns + 1, self._width))
        self._pair_confidence = _stairs(self._pair_confidence, completion.together.transpose(2, 3, 0, 1), at)

    def pair_confidence(self, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """How well the rates of both are known, in a last axis of length 2; 1 = measured, 0 = unknown."""
        return self._look_both(self._pair_confidence, a, b, gpu_types, sizes)

    def observe_pairs(self, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints, rates: Floats) -> None:
        """From now on pairs have the rates seen when they ran; the last axis of *rates* is for a and b."""
        if self._together is None:
            self._together = np.zeros_like(self._pair_confidence)
        ahead, behind = np.broadcast_arrays(*self._both(a, b, gpu_types, sizes))
        first, second = np.broadcast_arrays(self._row_of_job.find(a), self._row_of_job.find(b))
        known = (first < len(self.profiles.workloads)) & (second < len(self.profiles.workloads))
        known = np.broadcast_to(known, ahead.shape)
        seen = np.broadcast_to(rates, (*ahead.shape, 2))
        # Replaced, not written to: copies share them.
        together, confidence = self._together.copy(), self._pair_confidence.copy()
        for cells, member in ((behind, 1), (ahead, 0)):
            together.reshape(-1)[cells[known]] = seen[known][:, member]
            confidence.reshape(-1)[cells[known]] = 1.0
        self._together, self._pair_confidence = together, confidence


def _stairs(table: Floats, known: Floats, at: Ints) -> Floats:
    """Confidence at every size: at the table's own sizes as *known*, between and beyond half of the next below."""
    answer = table.copy()
    part = answer[tuple(slice(0, length) for length in known.shape[:-1])]
    below = np.searchsorted(at, np.arange(table.shape[-1]), side="right") - 1
    half = np.where(below >= 0, known[..., np.maximum(below, 0)] / 2, 0.0)
    part[...] = half
    part[..., at] = known
    return answer
