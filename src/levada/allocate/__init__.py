"""One decision as a pure function, as printed by `levada allocate`.

`standard` answers the documented cases with a cluster and jobs, `dragon` the cases with DRAGON's pods and nodes.
Neither reads files.
"""
