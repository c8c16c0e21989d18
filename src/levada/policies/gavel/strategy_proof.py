"""Strategy-proof fairness: no job gains by misreporting its speeds.

Source: Narayanan et al., OSDI 2020 (in its code, but in no list of policies). The policy maximises the geometric mean
of the levels of `max_min_fairness`. Then it multiplies the shares of each job by the product, over all other jobs, of
their level with the job over their level without it. The time cut off stays free, and rounds give it to pending jobs.
It needs one more solve per class of jobs, so it suits small clusters only.
"""

from __future__ import annotations

from typing import ClassVar

from levada.perf.model import ThroughputModel
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.lp_common import even_shares_of, problem_of, shares_of, unit_rates
from levada.policies.gavel.share import ShareDefaults, Shares
from levada.policies.protocol import Needs
from levada.solve.nash import strategy_proof


class StrategyProof(ShareDefaults):
    """Strategy-proof fairness that treats all GPU types as equal."""

    name: ClassVar[str] = "max_min_fairness_strategy_proof"
    objective: ClassVar[str] = "geo_mean_normalized_agnostic"

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Discounted shares; the objective is the geometric mean before the discount."""
        return even_shares_of(strategy_proof(problem_of(instance, unit_rates(instance))), instance), None


class StrategyProofPerf(ShareDefaults):
    """Strategy-proof fairness with the measured speed on each GPU type."""

    name: ClassVar[str] = "max_min_fairness_strategy_proof_perf"
    needs: ClassVar[Needs] = Needs.RATE
    objective: ClassVar[str] = "geo_mean_normalized"
    aware: ClassVar[bool] = True

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """Discounted shares; the objective is the geometric mean before the discount."""
        return shares_of(strategy_proof(problem_of(instance))), None
