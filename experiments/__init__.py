"""Experiments of the documentation, repeatable by one command each; no part of the package.

A folder holds an experiment: its code, its jobs and results, and the template of its page.
``python -m experiments.NAME`` does the jobs that are missing, and writes results, figures and page.
"""
