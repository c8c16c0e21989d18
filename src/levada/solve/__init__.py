"""Arrays in, arrays out: who should run how much of the time on which GPU type.

    problem     Problem and Solution, the values that every solver takes and gives
    classes     jobs with equal data are one row: `classify` from scratch, `Classes` kept from round to round
    max_min     the worst-off job gets as much as possible (LAS)
    leximin     then the next worst-off, and so on (water-filling); `hierarchical` with entities
    finish_time the largest finish-time ratio is as small as possible; `makespan` is its simplest case
    total       the most steps, or steps per cost, with rates that must be reached
    packed      the same objectives where two jobs may share GPUs
    allox       the least mean completion time, one GPU per job
    nash        the best geometric mean, discounted so that no job gains by lying
    interior    the middle of an optimal face instead of a corner of it; `interior_packed` with pairs
    split       from what a class gets to what each of its jobs gets, with few types per job
    safe        what every solver ends in when it fails: an equal share and an alarm
    instance    made-up problems of any size

Behind these: `highs` (the thin layer around HiGHS), `levels` and `requirements` (the two linear programs), `pairs`
(columns for two rows), `filling` (levels one after the other), `entities` (who shares), `price` (prices instead
of HiGHS), `central`, `selfdual` and `selfdual_pairs` (interior points), `last_filling` (what of
water-filling they need).

Levels are unique, shares are not: compare levels and feasibility, never entries of a share. Prices
are tried first, where there is a kernel for them: they prove their answer, and hand over to HiGHS when they cannot.
"""
