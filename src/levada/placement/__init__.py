"""Where workers go: fewest nodes per job, fewest moves of running workers, best fit, topology, parts of a GPU.

A placer changes a copy of the target plane; the engine checks the result before it counts. Nothing here decides how
many workers a job gets, though a job gets fewer than decided where they do not fit.
"""
