"""The hot loops on columns: one set of names, a numpy and a numba implementation of each.

`choose` serves policies, `place` the placer, `state` the engine and the invariants. Callers never ask which
implementation runs: both give the same answer, bit for bit, which a property test holds them to. `switch.use` chooses.

Kernels take and give arrays and numbers. They know no names, no objects, no policy, and import nothing of ours.
"""
