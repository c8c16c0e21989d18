"""Values and pure rules that every other package speaks of.

Here: jobs, the cluster, queues, columns (`JobTable`, `Inventory`, `Plane`), what a policy sees (`Snapshot`) and says
(`Decision`), what follows from it (`Plan`), events and commands, reasons, and the invariants I1 to I13.

Not here: any clock, file, log line, environment variable or random number, and nothing of the other packages.
"""
