"""Faults of every kind, with real servers and real processes."""
