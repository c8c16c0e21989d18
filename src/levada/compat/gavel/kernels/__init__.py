"""Kernels of the published mechanism and solver; rules: `levada.kernels`."""
