"""What the numbers say about the paper's claims: verdicts that nothing but the results decide."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from .grokking_jobs import LEVEL
from .records import Record


@dataclass(frozen=True)
class Claim:
    """What the paper says, whether it held, and what was seen."""

    paper: str
    verdict: str
    evidence: str


def contest_row(results: Record, name: str, study: str = "contest") -> Record | None:
    """The line of a contestant, or of an ablation."""
    rows = (r for r in results["rows"] if r["study"] == study and r["name"] == name)
    return next(rows, None)


def seconds_of(results: Record, row: Record) -> float | None:
    """Steps to 99 % times what a step costs when all contestants are timed in turns."""
    if row["steps_to_99"] is None:
        return None
    milliseconds = results["milliseconds"].get(row["name"], row["ms_per_step"])
    return float(row["steps_to_99"] * milliseconds / 1000)


def certified(results: Record, embedding: str, gap: float = 1e-3) -> list[Record]:
    """The convex programs on an embedding that were solved at least to `gap`."""
    mine = (r for r in results["convex"] if r["embedding"] == embedding)
    return [r for r in mine if r["relative_gap"] <= gap]


def best_standard(results: Record) -> str:
    """The quicker of the two standard blocks that are not trained as Power et al. do."""
    rows = [row for name in ("power", "power-slow") if (row := contest_row(results, name))]
    best = min(rows, key=lambda row: row["steps_to_99"] or math.inf, default=None)
    return "power" if best is None else str(best["name"])


def percent(value: float) -> str:
    """Whole percents, and one decimal where that would hide something.

    Examples
    --------
    >>> from convexformer.experiments.grokking_claims import percent
    >>> percent(0.5), percent(0.985), percent(0.012)
    ('50 %', '98.5 %', '1.2 %')
    """
    digits = 1 if value > 0.95 or value < 0.05 else 0
    return f"{100 * value:.{digits}f} %".replace("100.0", "100")


def claims(results: Record) -> list[Claim]:
    """All claims of the paper for which there are results."""
    made = (_groks, _faster, _lower_loss, _deeper, _small, _because)
    return [claim for make in made if (claim := make(results)) is not None]


def _groks(results: Record) -> Claim | None:
    told = []
    for name, label in (("power-default", "weight decay 1"), ("no-decay", "no decay")):
        row = contest_row(results, name)
        if row is not None and row["steps_to_fit"] is not None:
            until = row["steps_to_99"]
            late = (
                f"not in {row['last_step']:,.0f} steps (best {percent(row['best'])})"
                if until is None
                else f"after {until:,.0f}"
            )
            told.append(f"{label}: fits after {row['steps_to_fit']:,.0f} steps, generalises {late}")
    if not told:
        return None
    paper = "Standard transformers grok: they fit after 10³ steps and generalise after 10⁵."
    evidence = "; ".join(told) + ". How late depends on decay and learning rate."
    return Claim(paper, "holds in kind", evidence)


def _faster(results: Record) -> Claim | None:
    gated = contest_row(results, "gated")
    if gated is None or gated["steps_to_99"] is None:
        return None
    told, ratios = [], {}
    tuned = best_standard(results)
    rivals = {"power-default": "Power et al.'s recipe", tuned: "the better tuned standard block"}
    rivals |= {"grokfast": "Grokfast", "mlp": "an MLP"}
    for name, label in rivals.items():
        row = contest_row(results, name)
        if row is None:
            continue
        if row["steps_to_99"] is None:
            told.append(f"{label} does not get there in {row['last_step']:,.0f} steps")
            continue
        ratios[name] = row["steps_to_99"] / gated["steps_to_99"]
        told.append(f"{ratios[name]:.1f}x fewer steps than {label} ({_seconds(results, row)})")
    ten = ratios.get("power-default", 0) >= 10
    also_tuned = ratios.get(tuned, 10) >= 10
    verdict = "holds" if ten and also_tuned else "half true" if ten else "does not hold"
    if "power-default" not in ratios:
        verdict = "open"
    own = f"{gated['steps_to_99']:,.0f} steps, {seconds_of(results, gated):.1f} s"
    evidence = f"The gated layer needs {own}, "
    evidence += f"{gated['persistent']} of {gated['seeds']} seeds stay: " + "; ".join(told) + "."
    return Claim("Convex training generalises 10x faster.", verdict, evidence)


def _seconds(results: Record, row: Record) -> str:
    return f"{seconds_of(results, row):.1f} s"


def _lower_loss(results: Record) -> Claim | None:
    losses: dict[str, list[float]] = {}
    for record in results["records"]:
        if record["study"] == "contest" and record["steps_to_99"] is not None:
            losses.setdefault(record["name"], []).append(record["curve"]["test_loss"][-1])
    rival = best_standard(results)
    if not {"gated", rival} <= set(losses):
        return None
    ours, theirs = median(losses["gated"]), median(losses[rival])
    verdict = "holds" if ours < theirs else "does not hold"
    evidence = f"500 steps after 99 % it is {ours:.2g}, the tuned standard block's {theirs:.2g}"
    if "power-default" in losses:
        evidence += f", that of Power et al.'s recipe {median(losses['power-default']):.2g}"
    return Claim("Its test loss is lower.", verdict, evidence + " (medians).")


def _deeper(results: Record) -> Claim | None:
    pairs = [("gated", "gated-2"), (best_standard(results), "power-2")]
    told, sooner = [], False
    for one, two in pairs:
        first, second = contest_row(results, one), contest_row(results, two)
        if first is not None and second is not None:
            told.append(f"{results['labels'][two]} {_when(second)}, one {_when(first)}")
            sooner = sooner or (one == "gated" and _earlier(second, first))
    depth = {row["name"]: row for row in results["rows"] if row["study"] == "depth"}
    for name, row in depth.items():
        if name.startswith("two") and (other := depth.get(name.replace("two layers", "one layer"))):
            told.append(f"at {name[-4:]} parameters two {_when(row)}, one {_when(other)}")
            sooner = sooner or _earlier(row, other)
    if not told:
        return None
    verdict = "holds in part" if sooner else "does not hold"
    paper = "A second layer makes the convex model much faster, the standard one not."
    return Claim(paper, verdict, "At equal parameters: " + "; ".join(told) + ".")


def _earlier(one: Record, other: Record) -> bool:
    if one["steps_to_99"] is None:
        return False
    return other["steps_to_99"] is None or one["steps_to_99"] < other["steps_to_99"]


def _when(row: Record) -> str:
    if row["steps_to_99"] is None:
        return f"not in {row['last_step']:,.0f} steps (best {percent(row['best'])})"
    return f"in {row['steps_to_99']:,.0f} steps"


def _small(results: Record) -> Claim | None:
    final = {r["name"]: r for r in results["small"] if r["setting"] and r["share"] == 0.8}
    if not {"gated", "gated-4"} <= set(final):
        return None
    one, four = (median(final[name]["best"]) for name in ("gated", "gated-4"))
    words = {"gated": "one gated layer", "gated-4": "four", "power": "one standard block"}
    words |= {"power-4": "four", "mlp": "an MLP", "square": "a squared MLP"}
    words |= {"hypercube": "HyperCube"}
    told = [f"{word} {_heights(final[name])}" for name, word in words.items() if name in final]
    verdict = "does not hold"
    if max(final["gated-4"]["best"]) >= LEVEL:
        verdict = "holds" if one < LEVEL <= four else "holds in part"
    evidence = "Best test accuracy, 80 % to train on, median of splits (splits that reach 99 %): "
    paper = "Modulo 15 one layer fails, four reach 99 %, convex ones sooner."
    return Claim(paper, verdict, evidence + ", ".join(told) + ".")


def _heights(record: Record) -> str:
    reached = sum(best >= LEVEL for best in record["best"])
    return f"{percent(median(record['best']))} ({reached} of {len(record['best'])})"


def _because(results: Record) -> Claim | None:
    fixed = certified(results, "random")
    if not fixed:
        return None
    best = max(r["test_accuracy"] for r in fixed)
    gates = max(r["gates"] for r in fixed)
    told = f"The truly convex layer on random embeddings, with up to {gates} gates and at its "
    told += f"certified optimum, stays at {percent(best)} or less (chance 1 %)"
    mlp = contest_row(results, "mlp")
    if mlp is not None and mlp["steps_to_99"] is not None:
        told += f"; a plain ReLU MLP, which is not convex, is as quick ({_when(mlp)})"
    return Claim(
        "Grokking is due to nonconvexity.", "not supported", told + ". See “Why is it fast?”."
    )


# Ablations --------------------------------------------------------------------------------------


# What an ablation means if its median seed learns the task, and if it does not
MEANINGS = {
    "gates frozen": ("Gates need not follow the embedding", "Gates must follow the embedding"),
    "no readout": ("The linear readout is not needed", "The linear readout is needed"),
    "learning rate / 2": ("Half of the learning rate", "Half of the learning rate is too low"),
    "learning rate / 10": ("A tenth of it", "A tenth of it is too low"),
    "no decay": ("Weight decay helps, but is not needed", "Weight decay is needed"),
    "no clipping, no averaging": (
        "Clipping and averaging steady it, and are not what makes it fast",
        "Clipping and averaging are needed",
    ),
    "32 gates": ("A third of the gates will do", "A third of the gates is too few"),
    "256 gates": ("More gates are faster still, in steps", "More gates do not help"),
    "group lasso 0.001, not decay": (
        "The group lasso can take the place of decay on the layer",
        "The group lasso cannot take the place of decay on the layer",
    ),
    "ReLU MLP in its place": (
        "A plain ReLU MLP of as many parameters under the same recipe does it, too",
        "A plain ReLU MLP under the same recipe does not do it",
    ),
}


def why(results: Record) -> list[str]:
    """What the ablations support, in sentences."""
    base = contest_row(results, "as chosen", "ablation")
    if base is None or base["steps_to_99"] is None:
        return ["The ablations have not been run."]
    sentences = [f"As chosen, the gated layer learns {_when(base)}."]
    for name, (if_learnt, if_not) in MEANINGS.items():
        row = contest_row(results, name, "ablation")
        if row is not None:
            meaning = if_not if row["steps_to_99"] is None else if_learnt
            sentences.append(f"{meaning}: {_when(row)}.")
    learnt, fixed = certified(results, "learnt"), certified(results, "random")
    if learnt and fixed:
        high, low = (max(r["test_accuracy"] for r in part) for part in (learnt, fixed))
        sentences.append(
            f"The embedding has to be learnt: on a random one the certified convex optimum tells "
            f"at most {percent(low)} of the test half, on one learnt by a network and then fixed "
            f"up to {percent(high)}."
        )
    return sentences
