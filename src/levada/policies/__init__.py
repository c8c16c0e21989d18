"""One policy per file: how many workers of which type every job gets.

A policy is a pure function of (snapshot, beliefs about speed, its own state). It knows no nodes unless it decides by
node, no operations, no guards and no queues: the engine and `queued` see to those. `table` lists them without
importing them; `registry` makes them by name.
"""
