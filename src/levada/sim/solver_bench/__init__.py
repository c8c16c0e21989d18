"""`levada bench solve`: times of the first solve and of later ones.

Later solves follow small changes of the population. `population` draws the jobs, `programs` solves the linear programs
of share policies, `whole_policies` calls policies that solve none, `measure` takes the times.
"""

from levada.sim.solver_bench.measure import BenchSettings, Figures, measure

__all__ = ["BenchSettings", "Figures", "measure"]
