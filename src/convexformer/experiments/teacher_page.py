"""The page of the student-teacher experiment, in Markdown, made from its results alone."""

from __future__ import annotations

from .records import Record, environment_line, table
from .teacher_claims import findings, label, loss, summary, tasks_of
from .teacher_jobs import known_floor

PAGE = """\
# Students of a real encoder's attention

{summary}

This is the paper's first experiment: students learn to reproduce what one layer of a pretrained
encoder writes, from what it reads. Here the teacher is layer {layer} (counted from 0) of `{model}`,
on {text}. Losses are squared errors over that of predicting the mean: 1 is knowing nothing.
{other}

{findings}

{sections}

## How it was measured

Made by `{command}` from `results.json`, last run {date} UTC; {minutes:.0f} minutes of processor
time went into training. All numbers come from there.{incomplete}

{environments}

There were {sizes[0]} pairs to train on, {sizes[1]} to choose on and {sizes[2]} to test, those that
fill {n_tokens} tokens. MRPC is not part of the package: `--mrpc DIR`, or `CONVEXFORMER_MRPC`, names
the folder with its files; without it prose of the package takes its place.

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

WIDER = """
- A wider grid for trained students."""

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
    tasks, few = tasks_of(results), results["command"].endswith("--few")
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
        summary="\n".join(summary(results)),
        findings="\n".join(f"- {sentence}" for sentence in findings(results)),
        sections="\n\n".join(_section(results, key, rows, figures) for key, rows in tasks.items()),
        left_out=_left_out(results, few),
    )


def _left_out(results: Record, few: bool) -> str:
    always = LEFT_OUT_OF_FEW if few else LEFT_OUT
    shared = SHARED if results["text"] == "MRPC" else ""
    return always + WIDER + shared + _unlearnt(results) + _missing(results)


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


def _missing(results: Record) -> str:
    """Students for which there was no time, by task."""
    lines = [
        f"- Not run yet, {results['targets'][target]}: "
        + "; ".join(label(results, student) for student in students)
        for target, students in results["missing"].items()
    ]
    return "".join(f"\n{line}." for line in lines)


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
            [f"**{name}**" if row["convex"] else name, loss(row), f"{row['train_loss']:.3f}"]
            + [f"{row['objective']:.4f}", _number(known_floor(row))]
            + [f"{abs(row['relative_gap']):.0e}" if "relative_gap" in row else ""]
            + [f"{row['parameters']:,}"]
            + [f"{row['seconds_to_converge']:.1f}", f"{row['seconds_of_all']:.0f}"]
        )
    return table(header, lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
