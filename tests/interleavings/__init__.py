"""The real server under a scheduler that orders its tasks, threads and timers by seed."""
