"""Compatibility with Gavel and Voda, separate from Levada's own code.

`gavel` reproduces Gavel's published scheduler and solver, so that results can be compared; `voda` serves Voda's HTTP
routes. Scheduling does not depend on this package, except for `mechanism: gavel` and `shares: interior`.
"""
