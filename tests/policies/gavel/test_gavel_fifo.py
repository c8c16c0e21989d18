"""First come, first served: fixed by default, as published with the mechanism."""

from __future__ import annotations

import numpy as np
import pytest

from levada.policies import registry
from levada.policies.gavel.allox import Allox
from levada.policies.gavel.gavel_fifo import FifoState, GavelFifo, GavelFifoPublished
from tests.policies.gavel.instances import by_name, moment

GPUS = {"v100": 2, "p100": 2, "k80": 2}


@pytest.mark.parametrize("seed", [0, 2])
def test_no_type_is_promised_beyond_what_there_is(seed: int) -> None:
    instance = moment([[1.0, 1.0, 1.0]] * 20, GPUS)
    mended, published = GavelFifo(), GavelFifoPublished()
    shares, _ = mended.shares(instance, instance.perf, mended.initial(seed))
    assert shares.share.sum(axis=0).tolist() == [0.0, 2.0, 2.0, 2.0]
    assert shares.share[:6].sum() == 6.0
    beyond, _ = published.shares(instance, instance.perf, published.initial(seed))
    # As seen in the original with these seeds.
    assert by_name(instance, beyond.share) == [{"v100": 1.0}] * 20


def test_types_are_kept_and_left_ones_go_to_the_head_of_the_queue() -> None:
    policy = GavelFifo()
    before = moment([[1.0, 1.0, 1.0]] * 4, {"v100": 1, "p100": 1, "k80": 1})
    shares, state = policy.shares(before, before.perf, policy.initial(3))
    kinds = dict(state.type_of)
    assert sorted(kinds) == [0, 1, 2]
    # Job 1 is over.
    gone = FifoState(type_of={**kinds, 99: kinds[1]}, generator=state.generator)
    del gone.type_of[1]
    now = moment([[1.0, 1.0, 1.0]] * 4, {"v100": 1, "p100": 1, "k80": 1})
    shares, state = policy.shares(now, now.perf, gone)
    assert state.type_of[0] == kinds[0]
    assert state.type_of[2] == kinds[2]
    assert state.type_of[1] == kinds[1]  # the head of the queue takes what is free
    assert 3 not in state.type_of
    assert shares.share.sum() == 3.0


def test_nobody_overtakes_but_a_job_that_can_run_nowhere() -> None:
    instance = moment([[1.0], [1.0], [1.0]], {"v100": 2}, scale=[1, 2, 1])
    policy = GavelFifo()
    shares, _ = policy.shares(instance, instance.perf, policy.initial(0))
    assert by_name(instance, shares.share) == [{"v100": 1.0}, {}, {}]
    instance = moment([[1.0], [1.0], [1.0]], {"v100": 2}, scale=[1, 4, 1])
    shares, _ = policy.shares(instance, instance.perf, policy.initial(0))
    assert by_name(instance, shares.share) == [{"v100": 1.0}, {}, {"v100": 1.0}]


def test_a_type_that_shrinks_lets_its_last_jobs_go() -> None:
    policy = GavelFifo()
    state = FifoState(type_of={0: 1, 1: 1}, generator=policy.initial(0).generator)
    instance = moment([[1.0, 1.0], [1.0, 1.0]], {"v100": 1, "k80": 1})
    shares, state = policy.shares(instance, instance.perf, state)
    assert state.type_of == {0: 1, 1: 2}
    assert np.array_equal(shares.share.sum(axis=1), [1.0, 1.0])


def test_the_published_mechanism_has_the_published_policy() -> None:
    assert type(registry.make("gavel-fifo", {"mechanism": "gavel"}).policy) is GavelFifoPublished  # type: ignore[attr-defined]
    assert type(registry.make("gavel-fifo").policy) is GavelFifo  # type: ignore[attr-defined]


def test_allox_with_its_option_in_its_name() -> None:
    policy = registry.make("allox_alpha=0.25").policy  # type: ignore[attr-defined]
    assert isinstance(policy, Allox)
    assert policy.alpha == 0.25


def test_allox_sends_nobody_where_it_cannot_run() -> None:
    instance = moment([[0.0, 2.0], [0.0, 2.0]], {"v100": 1, "k80": 1}, steps=[10.0, 20.0])
    shares, state = Allox().shares(instance, instance.perf, Allox().initial(0))
    assert by_name(instance, shares.share) == [{"k80": 1.0}, {}]
    assert state.type_of == {0: instance.names.index("k80")}
