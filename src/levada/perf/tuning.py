"""The numbers of the estimator, each with its unit and its reason."""

from enum import StrEnum

import msgspec


class RestartKind(StrEnum):
    """What a job pauses for."""

    START = "start"
    RESIZE = "resize"
    STOP = "stop"


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the estimator learns and forgets. Times are seconds of observed running, not of the wall clock."""

    #: After this much more running of a workload on a GPU type, what was seen before counts half. A few epochs of a
    #: common job: long enough to average noise, short enough to follow a job whose steps become slower.
    half_life_s: float = 7200.0
    #: Observed running at which confidence is 1/2.
    even_weight_s: float = 120.0
    #: Weight of the first interval after a start or resize, relative to a warm one; 0 drops it. It contains loading
    #: and warm-up, but for a job with long epochs it is better than knowing nothing for hours.
    cold_weight: float = 0.05
    #: A rate further than this factor from what is known is an outlier and left out ...
    outlier_factor: float = 8.0
    #: ... unless what is known has not reached this confidence and rests on less running than the sample itself ...
    outlier_confidence: float = 0.5
    #: ... or it is this many warm samples in a row: then the speed has changed, and learning starts afresh.
    outlier_strikes: int = 3
    #: Confidence is multiplied by this where the rate is taken from another GPU type by a known ratio ...
    borrowed_trust: float = 0.25
    #: ... and by this where no workload has run on both types, so that only the shape can be borrowed.
    guessed_trust: float = 0.1
    #: Pauses expected before any was seen: load and resume; save, regroup and resume; save.
    start_s: float = 30.0
    resize_s: float = 30.0
    stop_s: float = 10.0
    #: Pauses averaged over (by their logarithms): the expected one counts as one, later ones fade after this many.
    restart_memory: int = 20
    #: So many workloads are remembered after their last job: those that ran longest ago are forgotten first. Else names
    #: that are never used again (a date in them) would make everything slower for ever.
    most_workloads: int = 1000
