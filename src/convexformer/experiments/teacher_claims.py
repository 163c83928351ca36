"""What the student-teacher experiment shows: sentences that nothing but its results decide."""

from __future__ import annotations

from .records import Record
from .teacher_jobs import TRAINED, known_floor

CERTIFIED_GAP = 1e-4  # relative
LAST = 4  # measurements, 25 steps from one to the next


def summary(results: Record) -> list[str]:
    """Who has the lower loss on how many tasks, with what proof, and against what grid."""
    pairs = [pair for rows in tasks_of(results).values() if (pair := _best_two(rows))]
    ahead = sum(convex["test_loss"] < other["test_loss"] for convex, other in pairs)
    told = [
        f"**On {len(pairs) - ahead} of {len(pairs)} tasks a trained student has a lower test loss "
        "than the best convex one**, both chosen on validation texts"
        + (f"; on {ahead} the convex one is ahead of what was run." if ahead else ".")
    ]
    return (told if pairs else []) + _certified(results) + _edges(results)


def findings(results: Record) -> list[str]:
    """One comparison for every task, floors, and the undertrained student."""
    told: list[str] = []
    for (target, dim), rows in tasks_of(results).items():
        known = {row["student"]: row for row in rows}
        where = results["targets"][target] + (", all channels" if dim is None else "")
        told += _contest(results, where, rows) + _single_head(results, where, known)
        told += _undertrained(results, where, known)
        if dim is None:
            told += _seconds(results, where, known)
    return told + _unfinished(results) + _floors(results)


def _certified(results: Record) -> list[str]:
    gaps = [row["relative_gap"] for row in results["rows"] if "relative_gap" in row]
    if not gaps:
        return []
    proved = sum(gap <= CERTIFIED_GAP for gap in gaps)
    who = "All" if proved == len(gaps) else f"{proved} of"
    return [
        f"{who} {len(gaps)} convex students are certified to {CERTIFIED_GAP:.0e} or better; the "
        f"largest relative duality gap is {max(gaps):.0e}."
    ]


def _edges(results: Record) -> list[str]:
    """How many students chose an end of their grid, beyond which a better one may lie."""
    tuned = {name: student for name, student in TRAINED.items() if len(student.lrs) > 1}
    rows = [row for row in results["rows"] if row["student"] in tuned]
    if not rows:
        return []
    rates = sum(map(at_largest_rate, rows))
    decays = sum(row["decay"] == min(tuned[row["student"]].decays) for row in rows)
    return [
        f"Of {len(rows)} tuned trained students {rates} chose the largest learning rate of their "
        f"grid and {decays} its smallest decay: beyond these, they might do better than is shown "
        "here."
    ]


def at_largest_rate(row: Record) -> bool:
    """Whether a student chose the largest of several learning rates."""
    student = TRAINED.get(row["student"])
    return student is not None and len(student.lrs) > 1 and row["lr"] == max(student.lrs)


def still_falls(row: Record) -> bool:
    """Whether a trained student still gained 1 % in the last 100 of its steps."""
    losses = row["curve"]["validation"]
    return len(losses) > LAST and min(losses[-LAST:]) < 0.99 * min(losses[:-LAST])


def _unfinished(results: Record) -> list[str]:
    """Students that more steps would have helped, but for the one that is to have too few."""
    rows = [row for row in results["rows"] if not row["convex"] and row["student"] in TRAINED]
    names = [
        f"{label(results, row['student'])} ({results['targets'][row['task']['target']]}"
        + (", all channels)" if row["task"]["dim"] is None else ")")
        for row in rows
        if row["student"] != "undertrained" and still_falls(row)
    ]
    if not names:
        return []
    return [
        "Not converged when their steps were used up (validation loss still 1 % lower after the "
        f"last 100 steps): {'; '.join(names)}. More steps would lower their losses."
    ]


def _best_two(rows: list[Record]) -> tuple[Record, Record] | None:
    """The convex student that validation finds best, and that of the others."""
    convex = [row for row in rows if row["convex"]]
    others = [row for row in rows if not row["convex"]]
    if not convex or not others:
        return None
    return min(convex, key=_validation_loss), min(others, key=_validation_loss)


def _contest(results: Record, where: str, rows: list[Record]) -> list[str]:
    """The best convex student and the best of the others, by their tests."""
    pair = _best_two(rows)
    if pair is None:
        return []
    convex, other = pair
    verdict = "Convex loses."
    if convex["test_loss"] < other["test_loss"]:
        verdict = _ahead(results, [row for row in rows if not row["convex"]], other)
    if still_falls(other):
        verdict += " The loss of the other was still falling when its steps were used up."
    return [
        f"{where}: the best convex student is {label(results, convex['student'])}, "
        f"{loss(convex)} in {convex['seconds_to_converge']:.1f} s; the best other one "
        f"{label(results, other['student'])}, {loss(other)} in "
        f"{other['seconds_to_converge']:.1f} s. {verdict}"
    ]


def _ahead(results: Record, others: list[Record], best: Record) -> str:
    """That convex is first, and who, beside the best of the others, might come closer yet."""
    words = "Convex is ahead of what was run"
    if not any(row["student"] == "softmax-12" for row in others):
        return f"{words}, which 12 softmax heads were not.{_might(best)}"
    names = [
        f"{label(results, row['student'])} ({loss(row)})"
        for row in others
        if row is not best and row["student"] != "undertrained" and still_falls(row)
    ]
    if names:
        words += f", but these were still falling at their last step: {'; '.join(names)}"
    return f"{words}.{_might(best)}"


def _might(row: Record, name: str = "other") -> str:
    """A caveat for students whose learning rate is the largest that was tried."""
    if not at_largest_rate(row):
        return ""
    return f" The {name} chose the largest learning rate of its grid and might do better."


def _single_head(results: Record, where: str, known: dict[str, Record]) -> list[str]:
    """Convex students against a single softmax head."""
    if "softmax-1" not in known:
        return []
    head = known["softmax-1"]
    lower = [
        f"{label(results, row['student'])} ({loss(row)}, {row['seconds_to_converge']:.1f} s)"
        for row in known.values()
        if row["convex"] and row["test_loss"] < head["test_loss"]
    ]
    told = f"a single softmax head ({loss(head)}, {head['seconds_to_converge']:.1f} s)"
    if not lower:
        return [f"{where}: no convex student has a lower loss than {told}."]
    words = f"{where}: convex students with a lower loss than {told}: {'; '.join(lower)}."
    return [words + _might(head, "head")]


def _undertrained(results: Record, where: str, known: dict[str, Record]) -> list[str]:
    """What training does to a softmax head, beside the best convex student."""
    if not {"undertrained", "softmax-1-literal", "softmax-1"} & known.keys() > {"undertrained"}:
        return []
    name = "softmax-1-literal" if "softmax-1-literal" in known else "softmax-1"
    poor, tuned = known["undertrained"], known[name]
    how = "tuned" if name == "softmax-1-literal" else "tuned, with scaled scores and a small start"
    words = (
        f"{where}: at learning rate 1e-4 a softmax head is left at {loss(poor)} after "
        f"{poor['seconds']:.0f} s; {how}, it reaches {loss(tuned)}."
    )
    convex = min((r for r in known.values() if r["convex"]), key=_validation_loss, default=None)
    if convex is None or not convex["test_loss"] < poor["test_loss"]:
        return [words]
    gap = poor["test_loss"] - convex["test_loss"]
    closed = (poor["test_loss"] - tuned["test_loss"]) / gap
    best = f"the best convex student, {label(results, convex['student'])} ({loss(convex)})"
    if closed < 1:
        return [f"{words} That is {closed:.0%} of its distance to {best}."]
    return [f"{words} That is past {best}: here a large gap is one of training, not of models."]


def _validation_loss(row: Record) -> float:
    """What the best are chosen by: who wins is then a matter of test texts alone."""
    return float(row["validation_loss"])


def _seconds(results: Record, where: str, known: dict[str, Record]) -> list[str]:
    """When a convex student is proved optimal, and when a softmax head seems to be done."""
    if not {"offsets", "softmax-1"} <= known.keys():
        return []
    ours, head = known["offsets"], known["softmax-1"]
    same = [
        f" (that of 64 components chooses the same, in {row['seconds_of_all']:.1f} s)"
        for row in results["rows"]
        if (row["student"], row["task"]) == ("offsets", ours["task"] | {"dim": 64})
        and row["chosen"] == ours["chosen"]
    ]
    more = " (it was still falling)" if still_falls(head) else ""
    return [
        f"{where}: {label(results, 'offsets')}, is certified to {ours['relative_gap']:.0e} within "
        f"{ours['seconds']:.1f} s, {ours['seconds_of_all']:.1f} s with the path that chose its "
        f"penalty{''.join(same)}; a softmax head needs {head['seconds_to_converge']:.1f} s to come "
        f"within 1 % of its lowest validation loss{more}, once its learning rate and decay are "
        "known."
    ]


def _floors(results: Record) -> list[str]:
    """How far above their certified floors trained students ended."""
    told, without = [], []
    for row in results["rows"]:
        if "floor" not in row or row["convex"]:
            continue
        who = f"{results['targets'][row['task']['target']]}: {label(results, row['student'])}"
        floor = known_floor(row)
        if floor is None:
            without.append(f"{who} ({row['floor_gap']:.0%} below what was reached)")
            continue
        heads = ", with any number of heads," if row["student"] == "simplex" else ""
        told.append(
            f"{who} ends {row['objective'] / floor - 1:.1%} above the certified floor of its "
            f"class{heads} at its decay ({row['objective']:.4f} against {floor:.4f}; gap of the "
            f"bound {row['floor_gap']:.0e}). Its weights are those with the lowest validation "
            "loss, not with the lowest objective."
        )
    if without:
        told.append(
            "No floor, because the solver ran out of time and its bound is too low to say "
            f"anything: {'; '.join(without)}."
        )
    return told


def label(results: Record, student: str) -> str:
    """A name that stands alone."""
    name = str(results["labels"][student])
    return f"softmax attention, 1 head, {name[4:]}" if name.startswith("... ") else name


def loss(row: Record) -> str:
    error = row["test_error"]
    return f"{row['test_loss']:.3f}" + ("" if error is None else f" ± {error:.4f}")


def tasks_of(results: Record) -> dict[tuple[str, int | None], list[Record]]:
    tasks: dict[tuple[str, int | None], list[Record]] = {}
    for row in results["rows"]:
        tasks.setdefault((row["task"]["target"], row["task"]["dim"]), []).append(row)
    return tasks
