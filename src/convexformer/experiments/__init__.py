"""Experiments that write their results as JSON, can be interrupted and resumed, and are repeatable.

Each has a command line: ``convexformer reproduce --help``, and
``python -m convexformer.experiments.predictive --help``.
"""
