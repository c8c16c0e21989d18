"""Solvers for time shares: which fraction of time each job runs on each GPU type.

    problem        `ShareProblem` and `Solution`, input and output of every solver
    classes        jobs with equal data as one row: `classify` from scratch, `Classes` incrementally
    max_min        maximize the lowest level (LAS)
    leximin        then the next lowest, and so on (water-filling); `hierarchical` with entities
    efficient      maximize total speed above a fraction of each job's leximin rate
    finish_time    minimize the largest finish-time ratio; `makespan` is a special case
    max_throughput maximize total throughput, or throughput per cost, with minimum rates
    packed         the same objectives with pairs of jobs that share GPUs
    allox          minimize the mean completion time, one GPU per job
    nash           maximize the geometric mean, with a discount that makes it strategy-proof
    class_split    split the time of a class among its jobs, with few types per job
    fallback       replace a failed solve by equal shares and an alarm

Internal: `highs` (wrapper of HiGHS), `levels` and `requirements` (the two linear programs), `pairs` (columns for
pairs), `water_filling` (levels one after the other), `entities`, `groups`, `price` (a price method that replaces
HiGHS), `central` (interior points). `levada.compat.gavel.solver` reproduces the published solver of Gavel.

Levels are unique, shares are not: compare levels and feasibility, never entries of a share. Where a price kernel
exists, it runs first: it proves its solution, or HiGHS solves the problem instead.
"""
