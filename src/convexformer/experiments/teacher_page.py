"""The page of the student-teacher experiment, in Markdown, made from its results alone."""

from __future__ import annotations

from .records import Record, environment_line, table
from .teacher_jobs import TRAINED, known_floor

PAGE = """\
# Students of a real encoder's attention

Made by `{command}` from `results.json`, last run {date} UTC; {minutes:.0f} minutes of processor
time went into training. All numbers come from there.{incomplete}

{environments}

The paper's first experiment: students learn to reproduce what one layer of a pretrained encoder
writes, from what it reads. Here the teacher is layer {layer} (counted from 0) of `{model}`, on
{text}: {sizes[0]} pairs to train, {sizes[1]} to choose on, {sizes[2]} to test, those that fill
{n_tokens} tokens. Losses are squared errors over that of predicting the mean: 1 is knowing nothing.
MRPC is not part of the package: `--mrpc DIR`, or `CONVEXFORMER_MRPC`, names the folder with its
files; without it prose of the package takes its place. {other}

- All students read the same inputs: hidden states, centred, on one scale, as 64 principal
  components or all channels, and a constant channel. Targets are 16 principal components.
- Softmax attention: scaled scores and small queries and keys at the start, unless it says
  otherwise; a single head has the width of the inputs, several have 32 each.
- Convex by positions is the paper's program: every target position has weights of its own for every
  position. Convex by offsets ties them: from 4 tokens before to 4 after the target, the first and
  the last token, the mean, and the separator. Gates divide targets by the nearest of some fixed
  centres of tokens (k-means), each with weights of its own; they are drawn before the fit, and the
  program stays convex.
- Gradient-trained students have one grid (2 learning rates x 3 decays, short runs on the first
  seed), one budget within a task (at most 1500 steps of 128 texts for the whole attention output,
  800 for other targets, steps of 64 texts where inputs are all channels; stopped when
  validation stalls) and {seeds} seeds (± is the standard error over them); weights are those with
  the lowest validation loss. Convex students have a path of penalties to choose from. Validation
  chooses, always, also which student is called the best.{longer}
- Seconds are of processor time on one thread, with the configuration that was chosen: for trained
  students until the validation loss is within 1 % of its lowest; for convex ones from the data to
  the certified model. "With tuning" adds the other configurations, or the path of penalties (on
  which gaps of 1e-3 will do: they only choose).

## What it shows

{findings}

{sections}

## What was left out

{left_out}
"""

LEFT_OUT = """\
- At all channels there is one seed, and trained students have the configuration that tuning chose
  at 64 components: a step of softmax attention costs much more there.
- Seeds of 12 softmax heads, which cost most of all, and of the undertrained head: there is one.
- Other numbers of heads than 1, 2, 4 and 12; ablations of decay, scale and start on other targets
  than the whole attention output.
- The encoder of the paper: `--model bert-base-uncased --layer 5`, where a hub is reachable."""

SHARED = """
- A split of MRPC without common sentences: of its 1725 test pairs, 245 have a sentence that is also
  in a training pair (beside another). The split is MRPC's own."""

OTHERS = {  # by whether students are few
    False: "The sixth layer of an encoder of the paper's size: [another page](teacher-mpnet.md).",
    True: "All students, on a smaller encoder: [another page](teacher.md).",
}

LONGER = """
- Of the layer's output, simplex attention and 12 softmax heads had up to 3000 steps: after 800 both
  still gained."""

LEFT_OUT_OF_FEW = """\
- Softmax attention of several heads.
- All channels, a single head, the layer's output, and ablations: see the other page.
- Seeds of the undertrained head: there is one."""

CAPTIONS = {
    "paper": "The paper's picture, recreated at [CLS]: softmax attention UNDERTRAINED (learning "
    "rate 1e-4), simplex attention, and the convex program by Adam. Diamond: the certified "
    "solver. Dotted: certified floors; softmax attention has another penalty, and none.",
    "first": "The same task with every student trained until its validation loss stalls, or its "
    "steps are used up.",
    "whole": "The whole attention output. Diamonds: convex students, certified, at their penalty.",
    "bars": "All students of the whole attention output; blue ones are convex and certified.",
}
FIGURES: dict[tuple[str, int | None], tuple[str, ...]] = {
    ("first", 64): ("paper", "first"),
    ("attention", 64): ("whole", "bars"),
}


def render(results: Record, figures: dict[str, str]) -> str:
    """The page of `results`, with links to figures by name."""
    tasks, few = _tasks(results), results["command"].endswith("--few")
    return PAGE.format(
        command=results["command"],
        date=results["date"],
        minutes=results["seconds"] / 60,
        incomplete="" if results["complete"] else " **Not all jobs are done yet.**",
        environments="\n".join(map(environment_line, results["environments"])),
        text="MRPC" if results["text"] == "MRPC" else "sentences of the package (not MRPC)",
        sizes=results["sizes"],
        **results["teacher"],
        other=OTHERS[few],
        longer="" if few else LONGER,
        seeds=max((row["seeds"] for row in results["rows"]), default=0),
        findings="\n".join(f"- {sentence}" for sentence in findings(results)),
        sections="\n\n".join(_section(results, key, rows, figures) for key, rows in tasks.items()),
        left_out=_left_out(results, few),
    )


def _left_out(results: Record, few: bool) -> str:
    always = LEFT_OUT_OF_FEW if few else LEFT_OUT
    shared = SHARED if results["text"] == "MRPC" else ""
    return always + shared + _unlearnt(results) + _ends(results) + _missing(results)


def _unlearnt(results: Record) -> str:
    """Trained students that know nothing: what they are said to reach says little about them."""
    names = [
        f"{label(results, row['student'])} ({results['targets'][row['task']['target']]})"
        for row in results["rows"]
        if not row["convex"] and row["test_loss"] > 0.99
    ]
    if not names:
        return ""
    return (
        f"\n- Another scale of inputs, or another grid, for {'; '.join(names)}: with this one it "
        "does not learn, and its loss says nothing about what it could do."
    )


def _ends(results: Record) -> str:
    """How many students chose an end of their grid, beyond which a better one may lie."""
    tuned = {name: student for name, student in TRAINED.items() if len(student.lrs) > 1}
    rows = [row for row in results["rows"] if row["student"] in tuned]
    if not rows:
        return ""
    rates = sum(row["lr"] == max(tuned[row["student"]].lrs) for row in rows)
    decays = sum(row["decay"] == min(tuned[row["student"]].decays) for row in rows)
    return (
        f"\n- A wider grid: of {len(rows)} tuned students {rates} chose its largest learning rate "
        f"and {decays} its smallest decay. Beyond these, they might do better."
    )


def _missing(results: Record) -> str:
    """Students for which there was no time, by task."""
    lines = [
        f"- Not run yet, {results['targets'][target]}: "
        + "; ".join(label(results, student) for student in students)
        for target, students in results["missing"].items()
    ]
    return "".join(f"\n{line}." for line in lines)


def _tasks(results: Record) -> dict[tuple[str, int | None], list[Record]]:
    tasks: dict[tuple[str, int | None], list[Record]] = {}
    for row in results["rows"]:
        tasks.setdefault((row["task"]["target"], row["task"]["dim"]), []).append(row)
    return tasks


def _section(
    results: Record,
    key: tuple[str, int | None],
    rows: list[Record],
    figures: dict[str, str],
) -> str:
    target, dim = key
    inputs = "all channels" if dim is None else f"{dim} components"
    title = f"## {results['targets'][target].capitalize()}, from {inputs}".replace("[cls]", "[CLS]")
    drawn = [
        f"![{CAPTIONS[name]}]({figures[name]})\n\n*{CAPTIONS[name]}*"
        for name in FIGURES.get(key, ())
        if name in figures
    ]
    return "\n\n".join([title, _table(results, rows), *drawn])


def _table(results: Record, rows: list[Record]) -> str:
    header = ["student", "test loss", "training loss", "objective", "floor", "relative gap"]
    header += ["parameters", "seconds", "with tuning"]
    lines = []
    for row in sorted(rows, key=lambda row: row["test_loss"]):
        name = label(results, row["student"])
        lines.append(
            [f"**{name}**" if row["convex"] else name, _loss(row), f"{row['train_loss']:.3f}"]
            + [f"{row['objective']:.4f}", _number(known_floor(row))]
            + [f"{abs(row['relative_gap']):.0e}" if "relative_gap" in row else ""]
            + [f"{row['parameters']:,}"]
            + [f"{row['seconds_to_converge']:.1f}", f"{row['seconds_of_all']:.0f}"]
        )
    return table(header, lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def label(results: Record, student: str) -> str:
    """A name that stands alone."""
    name = str(results["labels"][student])
    return f"softmax attention, 1 head, {name[4:]}" if name.startswith("... ") else name


def _loss(row: Record) -> str:
    error = row["test_error"]
    return f"{row['test_loss']:.3f}" + ("" if error is None else f" ± {error:.4f}")


# Sentences that the numbers, and nothing else, decide -------------------------------------------

CERTIFIED_GAP = 1e-4  # relative
LAST = 4  # measurements, 25 steps from one to the next


def findings(results: Record) -> list[str]:
    """One comparison for every task, certificates, floors, and the undertrained student."""
    told: list[str] = []
    for (target, dim), rows in _tasks(results).items():
        known = {row["student"]: row for row in rows}
        where = results["targets"][target] + (", all channels" if dim is None else "")
        told += _contest(results, where, rows) + _single_head(results, where, known)
        told += _undertrained(results, where, known)
        if dim is None:
            told += _seconds(results, where, known)
    return told + _certified(results) + _unfinished(results) + _floors(results)


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


def _contest(results: Record, where: str, rows: list[Record]) -> list[str]:
    """The convex student that validation finds best, and that of the others, by their tests."""
    convex = min((r for r in rows if r["convex"]), key=_validation_loss, default=None)
    other = min((r for r in rows if not r["convex"]), key=_validation_loss, default=None)
    if convex is None or other is None:
        return []
    verdict = "Convex loses."
    if convex["test_loss"] < other["test_loss"]:
        verdict = _ahead(results, [row for row in rows if not row["convex"]], other)
    if still_falls(other):
        verdict += " The loss of the other was still falling when its steps were used up."
    return [
        f"{where}: the best convex student is {label(results, convex['student'])}, "
        f"{_loss(convex)} in {convex['seconds_to_converge']:.1f} s; the best other one "
        f"{label(results, other['student'])}, {_loss(other)} in "
        f"{other['seconds_to_converge']:.1f} s. {verdict}"
    ]


def _ahead(results: Record, others: list[Record], best: Record) -> str:
    """That convex is first, and who, beside the best of the others, might come closer yet."""
    if not any(row["student"] == "softmax-12" for row in others):
        return "Convex is ahead of what was run, which 12 softmax heads were not."
    names = [
        f"{label(results, row['student'])} ({_loss(row)})"
        for row in others
        if row is not best and row["student"] != "undertrained" and still_falls(row)
    ]
    if not names:
        return "Convex wins."
    return f"Convex is ahead, but these were still falling at their last step: {'; '.join(names)}."


def _single_head(results: Record, where: str, known: dict[str, Record]) -> list[str]:
    """Convex students against a single softmax head."""
    if "softmax-1" not in known:
        return []
    head = known["softmax-1"]
    better = [
        f"{label(results, row['student'])} ({_loss(row)}, {row['seconds_to_converge']:.1f} s)"
        for row in known.values()
        if row["convex"] and row["test_loss"] < head["test_loss"]
    ]
    verdict = "is beaten by " + "; ".join(better) if better else "is beaten by no convex student"
    return [
        f"{where}: a single softmax head ({_loss(head)}, {head['seconds_to_converge']:.1f} s) "
        f"{verdict}."
    ]


def _undertrained(results: Record, where: str, known: dict[str, Record]) -> list[str]:
    """What training does to a softmax head, beside the best convex student."""
    if not {"undertrained", "softmax-1-literal", "softmax-1"} & known.keys() > {"undertrained"}:
        return []
    name = "softmax-1-literal" if "softmax-1-literal" in known else "softmax-1"
    poor, tuned = known["undertrained"], known[name]
    how = "tuned" if name == "softmax-1-literal" else "tuned, with scaled scores and a small start"
    words = (
        f"{where}: at learning rate 1e-4 a softmax head is left at {_loss(poor)} after "
        f"{poor['seconds']:.0f} s; {how}, it reaches {_loss(tuned)}."
    )
    convex = min((r for r in known.values() if r["convex"]), key=_validation_loss, default=None)
    if convex is None or not convex["test_loss"] < poor["test_loss"]:
        return [words]
    gap = poor["test_loss"] - convex["test_loss"]
    closed = (poor["test_loss"] - tuned["test_loss"]) / gap
    best = f"the best convex student, {label(results, convex['student'])} ({_loss(convex)})"
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
