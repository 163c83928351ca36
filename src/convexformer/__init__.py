"""Attention trained to a certified global optimum."""

__version__ = "0.1.0"
