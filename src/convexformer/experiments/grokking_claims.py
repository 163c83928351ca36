"""What the numbers say about the paper's claims: verdicts that nothing but the results decide."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from .grokking_jobs import AFTER, EVERY, LEVEL
from .grokking_recipes import comparable
from .records import Record


@dataclass(frozen=True)
class Claim:
    """What the paper says, whether it held, and what was seen."""

    paper: str
    verdict: str
    evidence: str


def times(value: float) -> str:
    """A multiple in a digit after the point, or more where it is small.

    Examples
    --------
    >>> from convexformer.experiments.grokking_claims import times
    >>> times(6.51), times(0.0432)
    ('6.5x', '0.043x')
    """
    return f"{value:.1f}x" if value >= 0.1 else f"{value:.2g}x"


def contest_row(results: Record, name: str, study: str = "contest") -> Record | None:
    """The line of a contestant, or of an ablation."""
    rows = (r for r in results["rows"] if r["study"] == study and r["name"] == name)
    return next(rows, None)


def steps_of(row: Record) -> float:
    """Steps to 99 % of the median seed; all that it was given if it never got there."""
    return float(row["steps_to_99"] or row["last_step"])


def seconds_of(results: Record, row: Record) -> float:
    """The same steps times what a step costs when all contestants are timed in turns."""
    milliseconds = results["milliseconds"].get(row["name"], row["ms_per_step"])
    return float(steps_of(row) * milliseconds / 1000)


def in_steps(row: Record, base: Record) -> float:
    """The steps of a contestant in those of another, which must have got there."""
    return steps_of(row) / steps_of(base)


def in_seconds(results: Record, row: Record, base: Record) -> float:
    """The same in seconds."""
    return seconds_of(results, row) / seconds_of(results, base)


def certified(results: Record, embedding: str) -> list[Record]:
    """The convex programs on an embedding that were solved to the gap that was asked for."""
    mine = (r for r in results["convex"] if r["embedding"] == embedding)
    return [r for r in mine if r["relative_gap"] <= r["rules"]["tolerance"]]


def best_standard(results: Record) -> Record | None:
    """The quickest of the standard blocks that were tuned, of either width, with AdamW."""
    rows = [row for name in ("power", "power-wide") if (row := contest_row(results, name))]
    return min(rows, key=lambda row: row["steps_to_99"] or math.inf, default=None)


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


def summary(results: Record) -> str:
    """How many claims have which verdict, and how soon the main contestants learn."""
    verdicts = [claim.verdict for claim in claims(results)]
    if not verdicts:
        return "No claim can be judged yet."
    counts = ", ".join(f'"{v}" {verdicts.count(v)}' for v in dict.fromkeys(verdicts))
    names = {"gated": "The gated layer", "power": "a standard block tuned alike", "mlp": "an MLP"}
    rows = {words: row for name, words in names.items() if (row := contest_row(results, name))}
    told = "; ".join(f"{words} {_learns(row)}" for words, row in rows.items())
    return f"**The {len(verdicts)} claims of the paper that were tested: {counts}.** {told}."


def claims(results: Record) -> list[Claim]:
    """All claims of the paper for which there are results."""
    made = (_groks, _faster, _mitigates, _lower_loss, _deeper, _small, _small_better, _because)
    return [claim for make in made if (claim := make(results)) is not None]


def _groks(results: Record) -> Claim | None:
    told, late = [], False
    for name, label in (("power-default", "weight decay 1"), ("no-decay", "no decay")):
        row = contest_row(results, name)
        if row is not None and row["steps_to_fit"] is not None:
            late = late or steps_of(row) > 2 * row["steps_to_fit"]
            told.append(f"{label}: fits after {row['steps_to_fit']:,.0f} steps, {_learns(row)}")
    if not told:
        return None
    paper = "Standard transformers grok: they fit after 10³ steps and generalise after 10⁵."
    return Claim(paper, "holds in kind" if late else "does not hold", "; ".join(told) + ".")


def _faster(results: Record) -> Claim | None:
    gated, paper = contest_row(results, "gated"), "Convex training generalises 10x faster."
    if gated is None:
        return None
    if gated["steps_to_99"] is None:
        return Claim(paper, "does not hold", f"The gated layer {_learns(gated)}.")
    rivals = {name: row for name in RIVALS if (row := contest_row(results, name))}
    default, tuned = rivals.get("power-default"), best_standard(results)
    own = f"{gated['steps_to_99']:,.0f} steps, {seconds_of(results, gated):.1f} s"
    evidence = f"The gated layer needs {own}, and {gated['persistent']} of {gated['seeds']} seeds "
    evidence += (
        "stay at 99 %." + _multiples(results, rivals, gated) + _others(results, rivals, gated)
    )
    if default is None or (default["steps_to_99"] is None and in_steps(default, gated) < 10):
        verdict = "open"
    elif in_steps(default, gated) < 10:
        verdict = "does not hold"
    else:
        also_tuned = tuned is not None and in_steps(tuned, gated) >= 10
        verdict = "holds" if also_tuned else "half true"
        if tuned is not None and not also_tuned:
            evidence += " Power et al.'s recipe as given takes ten times the steps or more, a "
            evidence += "tuned standard block does not."
    return Claim(paper, verdict, evidence)


def _multiples(results: Record, rivals: dict[str, Record], gated: Record) -> str:
    """Of those whose recipe settled."""
    told = [
        f"{results['labels'][name]} {times(in_steps(row, gated))} and "
        f"{times(in_seconds(results, row, gated))}"
        for name, row in rivals.items()
        if comparable(results, row, gated)
    ]
    return f" Multiples of its steps and seconds: {'; '.join(told)}." if told else ""


def _others(results: Record, rivals: dict[str, Record], gated: Record) -> str:
    """Of those whose recipe did not settle: when they learnt, and no multiple."""
    told = [
        f"{results['labels'][name]} {_learns(row)}"
        for name, row in rivals.items()
        if not comparable(results, row, gated)
    ]
    return (
        f" Without a settled recipe, and so without a multiple: {'; '.join(told)}." if told else ""
    )


RIVALS = (
    "power-default",
    "power",
    "power-wide",
    "grokfast",
    "grokfast-default",
    "orthograd",
    "mlp",
)


def grokking_gap(record: Record) -> float | None:
    """Steps from fitting the training half to telling the other."""
    if record["steps_to_99"] is None or record["steps_to_fit"] is None:
        return None
    return float(record["steps_to_99"] - record["steps_to_fit"])


def _mitigates(results: Record) -> Claim | None:
    """Medians over the seeds that got there."""
    rival, gaps = best_standard(results), dict[str, list[float]]()
    for record in (r for r in results["records"] if r["study"] == "contest"):
        if (gap := grokking_gap(record)) is not None:
            gaps.setdefault(record["name"], []).append(gap)
    names = ("power-default", "power" if rival is None else rival["name"])
    if "gated" not in gaps or names[0] not in gaps:
        return None
    shorter = [median(gaps["gated"]) < median(gaps[n]) - EVERY for n in names if n in gaps]
    verdict = "holds" if all(shorter) else "half true" if any(shorter) else "does not hold"
    told = [
        f"{results['labels'][name]} {median(gaps[name]):,.0f}"
        for name in ("gated", *names, "mlp")
        if name in gaps
    ]
    evidence = f"Steps from 99 % in training to 99 % in test, medians: {'; '.join(told)}."
    return Claim("It mitigates grokking: it generalises soon after it fits.", verdict, evidence)


def _lower_loss(results: Record) -> Claim | None:
    losses: dict[str, list[float]] = {}
    for record in results["records"]:
        since = record["steps_to_99"] if record["study"] == "contest" else None
        if since is not None and record["last_step"] >= since + AFTER:
            losses.setdefault(record["name"], []).append(record["curve"]["test_loss"][-1])
    rival = best_standard(results)
    if rival is None or not {"gated", rival["name"]} <= set(losses):
        return None
    ours, theirs = median(losses["gated"]), median(losses[rival["name"]])
    verdict = "holds" if ours < theirs else "does not hold"
    evidence = f"{AFTER} steps after 99 % it is {ours:.2g}, the tuned standard block's {theirs:.2g}"
    if "power-default" in losses:
        evidence += f", that of Power et al.'s recipe {median(losses['power-default']):.2g}"
    return Claim("Its test loss is lower.", verdict, evidence + " (medians).")


def _deeper(results: Record) -> Claim | None:
    """Gated stacks are compared within equal parameters, standard blocks as they are."""
    rows = {row["name"]: row for row in results["rows"] if row["study"] in ("contest", "depth")}
    pairs = [("gated", "gated-2")]
    pairs += [(name.replace("two layers", "one layer"), name) for name in rows if "two" in name]
    told, sooner = [], []
    for one, two in pairs:
        if one in rows and two in rows:
            told.append(f"two gated layers {_sized(rows[two])}, one {_sized(rows[one])}")
            sooner.append(compared(rows[two], rows[one]) == "sooner")
    if not told:
        return None
    standard_too = False
    for one in ("power-wide", "power"):  # of as many parameters, or else of as many channels
        if {one, "power-2"} <= set(rows):
            told.append(f"two standard blocks {_sized(rows['power-2'])}, one {_sized(rows[one])}")
            standard_too = compared(rows["power-2"], rows[one]) == "sooner"
            break
    whole = all(sooner) and not standard_too
    verdict = "holds" if whole else "holds in part" if any(sooner) else "does not hold"
    paper = "A second layer makes the convex model much faster, the standard one not."
    return Claim(paper, verdict, "By parameters: " + "; ".join(told) + ".")


def _sized(row: Record) -> str:
    return f"({row['parameters'] / 1000:.0f}k) {_when(row)}"


def _learns(row: Record) -> str:
    when = _when(row)
    return f"does {when.replace('not', 'not learn', 1)}" if "not" in when else f"learns {when}"


def _when(row: Record) -> str:
    if row["steps_to_99"] is None:
        return f"not in {row['last_step']:,.0f} steps (best {percent(row['best'])})"
    return f"in {row['steps_to_99']:,.0f} steps"


def _small(results: Record) -> Claim | None:
    """To touch 99 % once, on a few equations, is not to have learnt: the end decides."""
    told, held, touched = [], [], False
    words = {"gated": "one gated layer", "gated-4": "four", "power": "one standard block"}
    words |= {"power-4": "four", "mlp": "an MLP", "hypercube": "HyperCube"}
    for share, final in small_finals(results).items():
        if {"gated", "gated-4"} <= set(final):
            one, four = final["gated"], final["gated-4"]
            held.append(median(one["best"]) < LEVEL <= median(four["last"]))
            touched = touched or max(four["best"]) >= LEVEL
            found = [f"{word} {_heights(final[n])}" for n, word in words.items() if n in final]
            told.append(f"{share:.0%} to train on: " + ", ".join(found))
    if not told:
        return None
    verdict = "holds" if all(held) else "holds in part" if touched else "does not hold"
    evidence = "Test accuracy at its best and at the end, medians of splits (splits that are ever "
    evidence += "at 99 %, steps given). " + "; ".join(told) + "."
    return Claim("Modulo 15 one layer fails, and four reach 99 %.", verdict, evidence)


def small_finals(results: Record) -> dict[float, dict[str, Record]]:
    """What networks came to modulo 15 with the settings that were chosen, by share and name."""
    finals: dict[float, dict[str, Record]] = {}
    for record in (r for r in results["small"] if r["setting"]):
        finals.setdefault(record["share"], {})[record["name"]] = record
    return finals


def _heights(record: Record) -> str:
    reached = sum(best >= LEVEL for best in record["best"])
    ends = " and ".join(percent(median(record[key])) for key in ("best", "last"))
    return f"{ends} ({reached} of {len(record['best'])}, {record['steps']:,})"


def _small_better(results: Record) -> Claim | None:
    """Split by split, by where accuracy ends: three splits of four make it hold."""
    told, shares = [], []
    for share, final in small_finals(results).items():
        for layers, ours, theirs in (("one", "gated", "power"), ("four", "gated-4", "power-4")):
            if {ours, theirs} <= set(final):
                pairs = list(zip(final[ours]["last"], final[theirs]["last"], strict=True))
                wins = sum(a > b for a, b in pairs)
                shares.append(wins / len(pairs))
                told.append(f"{layers}, {share:.0%} to train on: {wins} of {len(pairs)}")
    if not told:
        return None
    part = "holds in part" if max(shares) > 0.5 else "does not hold"
    verdict = "holds" if min(shares) >= 0.75 else part
    evidence = "Splits on which gated layers end higher than as many standard blocks (steps given "
    evidence += "are in the table): " + "; ".join(told) + "."
    return Claim("Modulo 15 the convex model generalises better.", verdict, evidence)


def _because(results: Record) -> Claim | None:
    fixed = certified(results, "random")
    if not fixed:
        return None
    best = max(r["test_accuracy"] for r in fixed)
    gates = max(r["gates"] for r in fixed)
    told = f"The truly convex layer on random embeddings, with up to {gates} gates and at its "
    told += f"certified optimum, tells at most {percent(best)} of the test half (chance 1 %)"
    mlp, gated = contest_row(results, "mlp"), contest_row(results, "gated")
    if mlp is not None and gated is not None and comparable(results, mlp, gated):
        told += f"; a plain ReLU MLP, which is not convex, needs {times(in_steps(mlp, gated))} the "
        told += "steps of the gated layer, which is not convex either"
    verdict = "not supported" if best < LEVEL else "open"
    return Claim("Grokking is due to nonconvexity.", verdict, told + ".")


# Ablations --------------------------------------------------------------------------------------


def why(results: Record) -> list[str]:
    """What the ablations support, in sentences."""
    base = contest_row(results, "as chosen", "ablation")
    if base is None:
        return ["The ablations have not been run."]
    groups: dict[str, list[str]] = {title: [] for title in GROUPS}
    for row in results["rows"]:
        if row["study"] == "ablation" and row is not base:
            groups[compared(row, base)].append(f"{row['name']} ({_short(row)})")
    sentences = [f"As chosen, the gated layer {_learns(base)}."]
    sentences += [f"{GROUPS[g]}: {'; '.join(w)}." for g, w in groups.items() if w]
    return sentences + [s for s in (_control(results), _representation(results)) if s]


GROUPS = {
    "never": "Not learnt by the median seed in as many steps as were given",
    "later": "Slower",
    "same": f"As fast, within the {EVERY} steps between two measurements",
    "sooner": "Faster",
}


def compared(row: Record, base: Record) -> str:
    """Where a network stands beside another, as finely as measurements can tell."""
    if row["steps_to_99"] is None:
        return "never"
    if base["steps_to_99"] is None:
        return "sooner"
    difference = row["steps_to_99"] - base["steps_to_99"]
    return "same" if abs(difference) <= EVERY else "later" if difference > 0 else "sooner"


def _short(row: Record) -> str:
    if row["steps_to_99"] is None:
        return f"best {percent(row['best'])}"
    return f"{row['steps_to_99']:,.0f}"


def _control(results: Record) -> str | None:
    gated, mlp = contest_row(results, "gated"), contest_row(results, "mlp")
    if gated is None or mlp is None or not comparable(results, mlp, gated):
        return None
    multiple = in_steps(mlp, gated)
    words = (
        f"A plain ReLU MLP of as many parameters, tuned alike, needs {times(multiple)} the steps"
    )
    if multiple < 2:
        return words + ": most of the speed is not the gated layer's own."
    return words + ": the gated layer has a share in the speed."


def _representation(results: Record) -> str | None:
    learnt, fixed = certified(results, "learnt"), certified(results, "random")
    if not learnt or not fixed:
        return None
    high, low = (max(r["test_accuracy"] for r in part) for part in (learnt, fixed))
    words = (
        f"On a random embedding the certified convex optimum tells at most {percent(low)} of the "
        "test half, on one that a network has learnt, then fixed, "
    )
    if high >= LEVEL > low:
        return words + f"up to {percent(high)}: what is learnt is the embedding."
    if high > 2 * low:
        return words + f"up to {percent(high)}: a part of what is learnt is the embedding."
    return words + f"no more than {percent(high)}: the embedding alone is not what is learnt."
