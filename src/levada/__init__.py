"""Levada: an elastic, heterogeneity-aware scheduler for deep-learning training.

It decides how many GPUs of which type each job gets, and on which nodes. One pure engine makes the decisions; the
simulator, the local backend and the Kubernetes backend are thin layers around it.
"""

__all__ = ["__version__"]

__version__ = "0.2.0"
