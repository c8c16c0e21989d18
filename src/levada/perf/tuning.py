"""Parameters of the estimator."""

from enum import StrEnum

import msgspec


class RestartKind(StrEnum):
    """Causes of a pause of a job."""

    START = "start"
    RESIZE = "resize"
    STOP = "stop"


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the estimator learns and forgets. Times are seconds of observed running, not wall-clock time."""

    #: Time a workload runs on a GPU type until earlier observations count half. A few epochs of a typical job: long
    #: enough to average noise, short enough to follow changes.
    half_life_s: float = 7200.0
    #: Observed running at which confidence is 1/2.
    even_weight_s: float = 120.0
    #: Relative weight of the first interval after a start or resize; 0 drops it. It includes loading and warm-up, but
    #: for a job with long epochs it is better than no observation for hours.
    cold_weight: float = 0.05
    #: A rate that differs by more than this factor from the known rate is rejected as an outlier ...
    outlier_factor: float = 8.0
    #: ... unless the known rate has less than this confidence and is based on less running than the sample ...
    outlier_confidence: float = 0.5
    #: ... or after this many consecutive warm outliers: the speed has changed, and learning restarts.
    outlier_strikes: int = 3
    #: Factor of the confidence if the rate is transferred from another GPU type by a known ratio ...
    borrowed_trust: float = 0.25
    #: ... and if no workload has run on both types, so that only the shape is transferred.
    guessed_trust: float = 0.1
    #: Expected pauses before any observation: load and resume; save, regroup and resume; save.
    start_s: float = 30.0
    resize_s: float = 30.0
    stop_s: float = 10.0
    #: Number of pauses in the geometric mean, including the expected one.
    restart_memory: int = 20
    #: Number of workloads that are kept after their last job; the least recently observed are dropped first. Otherwise
    #: names that are used once (with a date) would accumulate.
    most_workloads: int = 1000
