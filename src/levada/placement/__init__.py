"""Placement of workers: few nodes per job, few moves, topology, fractions.

A placer changes a copy of the target assignment, and the engine checks the result. Sizes are decided by the policy; a
job gets fewer workers if they do not fit.
"""
