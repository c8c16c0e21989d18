"""The state as columns: jobs, device assignments, snapshots, and the invariants.

`core` defines the columns, `kernels` work on them; this package combines both.
"""
