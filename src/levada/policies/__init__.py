"""Scheduling policies, one per file: how many workers of which type each job gets.

A policy is a pure function of (snapshot, speed model, own state). It does not see nodes (unless it decides by node),
operations, guards or queues: the engine and `queued` handle those. `catalog` lists the policies without importing them;
`registry` creates them by name.
"""
