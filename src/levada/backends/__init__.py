"""Backends: carry out the engine's operations on real machines and report events."""
