"""Values and pure rules that all other packages use.

Jobs, the cluster, queues, the layout of columns, decisions of policies (`Decision`), operations (`Plan`), events,
commands and reasons. The columns themselves are in `tables`.

The package uses no clock, files, logging, environment variables or random numbers, and imports no other package.
"""
