"""Whose hyperparameters can be trusted: what a search settled on, and where in its range."""

from __future__ import annotations

from .grokking_jobs import Recipe
from .grokking_studies import BETAS, CONTESTANTS, DECAYS, RATES
from .records import Record


def searched(row: Record) -> bool:
    """Whether the recipe of a line was searched, not given."""
    if row["study"] == "depth":
        return True
    contestant = CONTESTANTS.get(row["name"])
    return row["study"] == "contest" and contestant is not None and contestant.fixed is None


def at_edge(row: Record) -> bool:
    """Whether a recipe that was searched is the first or last of a line."""
    if not searched(row):
        return False
    recipe = Recipe(**row["recipe"])
    strengths = BETAS if recipe.beta else DECAYS
    ends = {min(RATES), max(RATES)}, {min(strengths), max(strengths)}
    return recipe.lr in ends[0] or recipe.strength in ends[1]


def unsettled(results: Record) -> list[str]:
    """Names of those of whom no recipe of the search settled at 99 %."""
    settled = {
        row["name"]
        for row in results["rows"]
        if row["study"] == "tuning" and any(step is not None for step in row["all_settled"])
    }
    return [row["name"] for row in results["rows"] if searched(row) and row["name"] not in settled]


def comparable(results: Record, *rows: Record) -> bool:
    """Whether the times of contestants can be put as multiples of each other.

    Their median seeds learnt, and their recipes settled: inside the range of the search; or, where
    a recipe was given, most seeds stay at 99 %. Otherwise a multiple would tell of the range, or of
    the recipe, as much as of the contestant.
    """
    return all(_settled(results, row) for row in rows)


def _settled(results: Record, row: Record) -> bool:
    if row["steps_to_99"] is None:
        return False
    if searched(row):
        return row["name"] not in unsettled(results) and not at_edge(row)
    return bool(2 * row["persistent"] > row["seeds"])
