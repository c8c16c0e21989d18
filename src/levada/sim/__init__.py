"""The simulated world: a clock that jumps to the next event, and a backend that takes simulated time.

It drives the same engine as the live shells do. It owns the truth (how fast jobs really run, how long starts and stops
take); policies see only what the engine believes.
"""

from levada.sim.simulation import Costs, Segment, Simulation

__all__ = ["Costs", "Segment", "Simulation"]
