"""Simulator: a clock that jumps to the next event, and a simulated backend.

It drives the same engine as the live server. It owns the truth (real speeds, durations of starts and stops); policies
see only what the engine believes.
"""

from levada.sim.simulation import Costs, Segment, Simulation

__all__ = ["Costs", "Segment", "Simulation"]
