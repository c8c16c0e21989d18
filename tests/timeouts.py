"""Time limit of all waits in tests. Passing tests never reach it, so it exceeds the stalls of a loaded machine."""

WAIT_S = 180.0
