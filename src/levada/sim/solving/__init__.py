"""How long solvers take: crowds of jobs drawn by seed, solved from scratch and then again and again as jobs change.

`crowd` draws the jobs, `programs` solves what linear programs say, `whole` asks policies that solve none, and `measure`
holds the clock.
"""

from levada.sim.solving.measure import Asked, Figures, measure

__all__ = ["Asked", "Figures", "measure"]
