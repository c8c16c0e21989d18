"""Work queue: one handler per key at a time, repeats, backoff."""

from __future__ import annotations

import asyncio
import itertools

from levada.backends.kubernetes.work import Expectations, WorkQueue
from tests.kubernetes.backend.virtual_time import run


def test_key_is_handled_once_at_a_time_and_again_if_added_meanwhile() -> None:
    async def story() -> None:
        active, handled = 0, []

        async def handle(key: str) -> None:
            nonlocal active
            active += 1
            assert active == 1
            await asyncio.sleep(1)
            handled.append(key)
            active -= 1

        queue = WorkQueue(handle)
        for _ in range(5):
            queue.add("a")
            await asyncio.sleep(0.1)
        await asyncio.sleep(10)
        assert handled == ["a", "a"]
        await queue.close()

    run(story())


def test_different_keys_are_handled_in_parallel_up_to_a_limit() -> None:
    async def story() -> None:
        active = most = 0

        async def handle(_: str) -> None:
            nonlocal active, most
            active += 1
            most = max(most, active)
            await asyncio.sleep(1)
            active -= 1

        queue = WorkQueue(handle, parallel=4)
        for number in range(10):
            queue.add(str(number))
        await asyncio.sleep(10)
        assert (active, most) == (0, 4)
        await queue.close()

    run(story())


def test_failing_handler_is_repeated_with_growing_delays_that_changes_do_not_shorten() -> None:
    async def story() -> None:
        times: list[float] = []

        async def handle(_: str) -> None:
            times.append(asyncio.get_running_loop().time())
            raise ValueError("broken")

        queue = WorkQueue(handle)
        queue.add("a")
        for _ in range(100):
            await asyncio.sleep(0.1)
            queue.add("a")
        delays = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert 6 <= len(times) <= 12
        assert delays[-1] > 10 * delays[0]
        await queue.close()

    run(story())


def test_handler_asks_for_a_later_visit_which_a_change_brings_forward() -> None:
    async def story() -> None:
        times: list[float] = []

        async def handle(_: str) -> float:
            times.append(asyncio.get_running_loop().time())
            return 100.0

        queue = WorkQueue(handle)
        queue.add("a")
        await asyncio.sleep(50)
        queue.add("a")
        await asyncio.sleep(99)
        assert times == [0.0, 50.0]
        await asyncio.sleep(2)
        assert times == [0.0, 50.0, 150.0]
        await queue.close()

    run(story())


def test_expectation_ends_when_it_is_met_or_too_old() -> None:
    async def story() -> None:
        expectations = Expectations()
        expectations.expect("u")
        assert expectations.pending("u")
        expectations.met("u")
        assert not expectations.pending("u")
        expectations.expect("u")
        await asyncio.sleep(31)
        assert not expectations.pending("u")

    run(story())
