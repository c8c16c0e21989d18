"""The best geometric mean of levels, each job's share then cut by what its presence costs the others: nobody gains by
claiming to be slower or faster somewhere than it is.

Source: Narayanan et al., OSDI 2020 (in its code, but in no list of policies). The level of a job is that of
`max_min_fairness`. Its shares are multiplied by the product, over all others, of their level with it over their level
without it; what is cut off stays free, and rounds give it to whoever waits. One solve more for each kind of job: for
small clusters.
"""

from __future__ import annotations

from typing import ClassVar

from levada.perf.model import ThroughputModel
from levada.policies.gavel.forms import all_alike, even_shares_of, problem_of, shares_of
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import Shares, Sharing
from levada.policies.protocol import Needs
from levada.solve.nash import strategy_proof


class StrategyProof(Sharing):
    """All types alike."""

    name: ClassVar[str] = "max_min_fairness_strategy_proof"
    objective: ClassVar[str] = "geo_mean_normalized_agnostic"

    def initial(self, seed: int) -> None:
        """It remembers nothing."""

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Discounted shares; the objective is the geometric mean before the discount."""
        problem = problem_of(instance, instance.rate if self.aware else all_alike(instance))
        found = strategy_proof(problem)
        return (shares_of(found) if self.aware else even_shares_of(found, instance)), None


class StrategyProofPerf(StrategyProof):
    """Types as they are."""

    name: ClassVar[str] = "max_min_fairness_strategy_proof_perf"
    needs: ClassVar[Needs] = Needs.RATE
    objective: ClassVar[str] = "geo_mean_normalized"
    aware: ClassVar[bool] = True
