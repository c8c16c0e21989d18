"""Benchmarks, run by `make bench`: CPU time, fixed seeds, kernels warmed up before the clock starts.

`load` makes clusters and jobs, `floor` an engine at work with a backend that does everything at once; `decide`,
`events`, `state`, `runtime`, `pauses` and `machine` measure; `report` prints. Nothing here is a test: a slow machine
fails nothing.
"""
