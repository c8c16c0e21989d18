"""Values and pure rules that every other package uses.

Here: jobs, the cluster, queues, the layout of columns, what a policy says (`Decision`), what follows from it (`Plan`),
events and commands, and reasons. The columns themselves are in `tables`.

Not here: any clock, file, log line, environment variable or random number, and nothing of the other packages.
"""
