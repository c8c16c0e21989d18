"""Gavel as published: rounds, simulator, solver end points, random generator.

`--mechanism gavel` and `shares: interior` use these modules. Levada's own rounds are `levada.policies.rounds`, its own
solvers `levada.solve`.
"""
