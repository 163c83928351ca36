"""The page of the probes of paraphrases, in Markdown, made from their results alone."""

from __future__ import annotations

from .classification_probes import PROBES
from .paraphrase_data import TOKENS
from .records import Record, environment_line, table

PAGE = """\
# Is it a paraphrase? Probes of frozen states

Made by `{command}` from `results.json`, run {date} UTC.

{environment}

Pairs of {text} ({sizes[0]} to train, {sizes[1]} to choose on, {sizes[2]} to test) go through layer
{layer} (counted from 0) of `{model}`, whose weights stay as they are. Positions of free text mean
nothing from one pair to the next, so convex attention reads *slots*: every token is matched to its
nearest in the other sentence, and slot k is the difference of the k-th worst match; beside these,
[CLS] and the difference and product of both sentences' means. Each probe tried seven values of its
penalty (C of logistic regression, beta as a fraction of beta_max, weight decay); the accuracy on
validation pairs chose. MRPC is not part of the package: `--mrpc DIR`, or `CONVEXFORMER_MRPC`, names
the folder with its files. Always saying "paraphrase" is right for {majority:.1%} of the test pairs.

{table}

{findings}
"""


def render(results: Record) -> str:
    """The page of `results`."""
    return PAGE.format(
        **{key: results[key] for key in ("command", "date", "text", "sizes", "layer", "model")},
        environment=environment_line(results["environment"]),
        majority=results["majority"],
        table=_table(results["rows"]),
        findings="\n".join(f"- {sentence}" for sentence in findings(results)),
    )


def _table(rows: list[Record]) -> str:
    header = ["probe", "validation accuracy", "F1", "test accuracy", "F1", "relative gap"]
    return table(
        [*header, "seconds, all fits"],
        [
            [row["label"]]
            + [f"{row[part][score]:.1%}" for part in ("validation", "test") for score in SCORES]
            + [f"{row['relative_gap']:.0e}" if "relative_gap" in row else ""]
            + [f"{row['seconds_of_all']:.0f}"]
            for row in sorted(rows, key=lambda row: -row["test"]["accuracy"])
        ],
    )


SCORES = ("accuracy", "f1")


def findings(results: Record) -> list[str]:
    """Sentences that the numbers, and nothing else, decide."""
    rows = {row["probe"]: row for row in results["rows"]}
    ours = rows["convex"]
    best = max(results["rows"], key=lambda row: row["test"]["accuracy"])
    error = (ours["test"]["accuracy"] * (1 - ours["test"]["accuracy"]) / results["sizes"][2]) ** 0.5
    reached = {name: row["test"]["accuracy"] for name, row in rows.items()}
    level = sum(accuracy >= max(reached.values()) - error for accuracy in reached.values())
    return [
        f"Convex attention reaches {reached['convex']:.1%}, the best, {best['label']}, "
        f"{best['test']['accuracy']:.1%}. The standard error of an accuracy is {error:.1%}: "
        f"{level} of {len(rows)} probes are within one of the best, and cannot be told apart.",
        f"Convex attention uses {len(ours['tokens'])} of {len(TOKENS)} tokens, the most important "
        f"ones first: {'; '.join(ours['tokens'][:5])}.",
        *_ends(results["rows"]),
        *([SHARED] if results["text"] == "MRPC" else []),
    ]


SHARED = (
    "The split is MRPC's own: of its 1725 test pairs, 245 have a sentence that is also in a "
    "training pair, beside another."
)


def _ends(rows: list[Record]) -> list[str]:
    """Probes that chose an end of their values, beyond which a better one may lie."""
    names = [
        row["label"]
        for row in rows
        if row["value"] in (PROBES[row["probe"]].values[0], PROBES[row["probe"]].values[-1])
    ]
    if not names:
        return []
    return [f"Chose an end of their values, and might do better beyond: {'; '.join(names)}."]
