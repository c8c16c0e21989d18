"""Gandiva: equal shares; on overload, random pairs share GPUs while that pays.

Source: Xiao et al., "Gandiva: Introspective Cluster Scheduling for Deep Learning", OSDI 2018, as Gavel models it: a
pair stays while the joint progress, summed over all types, is at least that of one job alone and both progress on
every type. The policy draws as often as there are jobs without a partner; a draw of two unequal sizes is lost.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from levada.compat.gavel.mersenne import Mersenne
from levada.perf.model import ThroughputModel
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.isolated import equal_shares
from levada.policies.gavel.share import ShareDefaults, Shares
from levada.policies.protocol import Needs


class GandivaState(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs by job numbers, and the generator."""

    pairs: tuple[tuple[int, int], ...] = ()
    generator: tuple[int, ...] = ()


class Gandiva(ShareDefaults):
    """Random pairs that stay while sharing pays."""

    name: ClassVar[str] = "gandiva"
    needs: ClassVar[Needs] = Needs.RATE
    packs: ClassVar[bool] = True

    def initial(self, seed: int) -> GandivaState:
        """No pairs."""
        return GandivaState(generator=Mersenne(seed).getstate())

    def shares(self, instance: Instance, perf: ThroughputModel, state: GandivaState) -> tuple[Shares, GandivaState]:
        """Equal shares for jobs, or for pairs and the jobs without a partner."""
        share = np.zeros_like(instance.rate)
        if not len(instance):
            return Shares(share=share), state
        if instance.scale.sum() <= instance.capacity.sum():
            equal = equal_shares(instance.capacity, instance.scale)
            return Shares(share=np.where(instance.rate > 0, equal, 0.0)), GandivaState(generator=state.generator)
        rng = Mersenne.fromstate(state.generator)
        row_of = {int(number): row for row, number in enumerate(instance.number)}
        pairs = [pair for pair in state.pairs if self._stays(instance, perf, row_of, pair)]
        paired = {number for pair in pairs for number in pair}
        single = [number for number in sorted(row_of) if number not in paired]
        for _ in range(len(single)):
            if len(single) < 2:
                break
            a, b = rng.sample(single, 2)
            if instance.may_share(row_of[a], row_of[b]):
                pairs.append((min(a, b), max(a, b)))
                single.remove(a)
                single.remove(b)
        rows = np.array([[row_of[a], row_of[b]] for a, b in pairs], np.int64).reshape(-1, 2)
        unpaired = np.array([row_of[number] for number in single], np.int64)
        scale = np.concatenate([instance.scale[unpaired], instance.scale[rows[:, 0]]])
        equal = equal_shares(instance.capacity, scale)
        runs = instance.rate > 0
        share[unpaired] = np.where(runs[unpaired], equal[: len(unpaired)], 0.0)
        both = np.where(runs[rows].all(axis=1), equal[len(unpaired) :], 0.0)
        shares = Shares(share=share, pairs=rows, pair_share=both)
        return shares, GandivaState(pairs=tuple(pairs), generator=rng.getstate())

    def _stays(self, instance: Instance, perf: ThroughputModel, row_of: dict[int, int], pair: tuple[int, int]) -> bool:
        if pair[0] not in row_of or pair[1] not in row_of:
            return False
        a, b = row_of[pair[0]], row_of[pair[1]]
        if not instance.may_share(a, b):
            return False
        kinds = np.array(instance.columns(), np.int64)
        together = perf.pair_rates(
            instance.number[[a]][:, None], instance.number[[b]][:, None], kinds[None, :], instance.size[[a]][:, None]
        )[0]
        alone = instance.rate[[a, b]][:, kinds].T
        if (together <= 0).any() or (alone <= 0).any():
            return False
        return bool((together / alone).sum() >= 1.0)
