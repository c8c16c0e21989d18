"""The state as columns: jobs, planes of devices, snapshots, and the rules that they keep.

`core` defines what the columns are; `kernels` work on them; here they are put together.
"""
