"""Compare simulations: tables of policies, and figures.

`data` reads sweeps and runs, `table` compares them, `figures` draws. This package runs no simulation. polars and
matplotlib are imported only when needed.
"""
