"""Experiments that write their results as JSON, can be interrupted and resumed, and are repeatable.

Each is a module with a command line: ``python -m convexformer.experiments.predictive --help``.
"""
