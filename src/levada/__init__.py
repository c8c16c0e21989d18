"""Levada: an elastic, heterogeneity-aware scheduler for deep-learning training.

It decides, again and again, how many GPUs of which kind every job gets and on which nodes. One pure engine decides;
a simulator, one machine and Kubernetes are thin shells around it.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
