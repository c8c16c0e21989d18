"""Benchmarks, run by `make bench`: CPU time, fixed seeds, kernels warmed up before measuring.

`load` generates clusters and jobs, `engine_driver` drives an engine with an instant backend; `decide`, `events`,
`state`, `sim`, `traces`, `runtime`, `pauses`, `live` and `machine` measure; `report` prints. Missed limits are
reported and do not fail the run.
"""
