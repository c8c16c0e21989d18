"""From what simulations left behind to what people look at: tables that compare policies, and figures.

`data` reads sweeps and runs, `table` compares them, `figures` draws. Nothing here runs a simulation. polars and
matplotlib are loaded where they are needed.
"""
