"""Rounds of share policies over whole columns: what is remembered of each job, who runs next, and what to say of it.

A *combination* is a job, or two that share devices. `members` holds two rows of jobs for each (-1 = nobody): first come
all jobs alone, row by row, then the pairs. Shares, credits and priorities are by combination and type. `speed` is by
job and type: 1 where a job is fastest, 0 where it cannot run.
"""

from __future__ import annotations

from levada.kernels.arrays import Bools, Floats, Ints
from levada.kernels.switch import kernels

#: Rows of what `answer` says of each job.
TYPE, COUNT, REASON, EVIDENCE, RANK = range(5)

#: What is remembered: members by job number, shares, credits, what shares were asked about, what there was then; and
#: who began to run meanwhile (number, type, seconds that had passed by then, in rows of three).
Memory = tuple[Ints, Floats, Floats, Floats, Ints, Floats]
#: The same by row now (members, share, credit, asked), what combinations need and where they run, and two questions
#: answered: whether shares are out of date, and whether those who run have more than there is for them.
Recalled = tuple[Ints, Floats, Floats, Floats, Ints, Ints, bool, bool]
#: Seconds that running already is worth, that are owed at most, that the fastest type is worth, and a whole share.
Weights = tuple[float, float, float, float]


def recall(
    memory: Memory,
    jobs: Ints,
    reals: Floats,
    allowed: Bools,
    partner: Ints,
    room: Ints,
    capacity: Ints,
    passed: float,
    weights: Weights,
) -> Recalled:
    """Brings what is remembered to the rows of now, and counts credit for the time that has *passed*.

    Jobs that are over go, new ones come with nothing. *jobs*, *reals* and *allowed* are the blocks of `view.jobs`.
    *partner* is per job who it shares devices with (-1: nobody any more, -2: it runs alone), or empty where nobody ever
    shares. Shares are out of date where jobs, their sizes, weights or types are others, or what there is.
    """
    found: Recalled = kernels["rounds"].recall(memory, jobs, reals, allowed, partner, room, capacity, passed, weights)
    return found


def fill(
    jobs: Ints,
    rate: Floats,
    allowed: Bools,
    liking: Ints,
    slots: Ints,
    capacity: Ints,
    total: Ints,
    passed: float,
) -> tuple[Ints, Floats]:
    """What is free goes to jobs that wait: `rates.hold`, `choose` and `answer` in one, between two rounds.

    What is said of each job, its rank as it was; and who begins to run: number, type, and the seconds that *passed*
    since the round. Nobody's share or credit matters then.
    """
    found: tuple[Ints, Floats] = kernels["rounds"].fill(jobs, rate, allowed, liking, slots, capacity, total, passed)
    return found


def running(members: Ints, jobs: Ints, partner: Ints) -> tuple[Ints, Ints]:
    """Per combination what it needs and the type it runs on, -1 = none; *partner* as for `recall`."""
    found: tuple[Ints, Ints] = kernels["rounds"].running(members, jobs, partner)
    return found


def choose(
    due: bool,
    strict: bool,
    owed_only: bool,
    members: Ints,
    share: Floats,
    credit: Floats,
    need: Ints,
    runs: Ints,
    speed: Floats,
    capacity: Ints,
    total: Ints,
    weights: Weights,
) -> Ints:
    """Per combination the type it runs on until the next round, -1 = none.

    Where a round is *due*, all run by falling priority; where *owed_only*, only those with a share. Otherwise those who
    run go on. What is left goes to jobs that wait, each where it is fastest compared with its best; under *strict*
    rules only to those with a share, and at a round to nobody. *total* is as for `take_turns`.
    """
    found: Ints = kernels["rounds"].choose(
        due, strict, owed_only, members, share, credit, need, runs, speed, capacity, total, weights
    )
    return found


def answer(
    owed_only: bool,
    jobs: Ints,
    members: Ints,
    share: Floats,
    credit: Floats,
    runs: Ints,
    chosen: Ints,
    speed: Floats,
    allowed: Bools,
    liking: Ints,
    slots: Ints,
    capacity: Ints,
    total: Ints,
    weights: Weights,
) -> tuple[Ints, Ints, int, int, float]:
    """Per job type, size, reason, evidence and rank (by falling credit) in one block; and members by job number.

    Last come how many combinations go on where they run, how many run, and for how many seconds no credit can overtake
    another, at the least: credits grow by shares, and shrink by running.

    *liking* is the table's preference by type and slot: all types a user allows, also where a view binds a job to one.
    *total* is what there is of each type in all. The rest is as for `choose`.
    """
    found: tuple[Ints, Ints, int, int, float] = kernels["rounds"].answer(
        owed_only,
        jobs,
        members,
        share,
        credit,
        runs,
        chosen,
        speed,
        allowed,
        liking,
        slots,
        capacity,
        total,
        weights,
    )
    return found


def take_turns(priority: Floats, need: Ints, members: Ints, left: Ints, total: Ints, taken: Bools) -> Ints:
    """Per combination the type it runs on, -1 = none, when (combination, type) pairs are taken by falling *priority*.

    A pair is passed over where its *need* is more than what is *left* of the type, where a member (a row of *taken*;
    -1 = none) runs already, and where its priority is minus infinity. Ties go by combination; of equal types it takes
    the one with the largest free part of its *total*, then the first. *left* and *taken* are brought up to date.
    """
    found: Ints = kernels["rounds"].take_turns(priority, need, members, left, total, taken)
    return found
