"""The page of the student-teacher experiment: who is ahead, what is proved, and its figures."""

from operator import itemgetter
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from convexformer.plotting._style import FAINT, HUES, MUTED

from ..figures import COLORS as ALL_COLORS
from ..figures import FONT, bars, few_numbers, legend, panels, plain_numbers
from ..lab import Record, grouped, plus_minus
from .experiment import TRAINED, known_floor

CERTIFIED_GAP = 1e-4  # relative
LAST = 4  # measurements, 25 steps from one to the next


def facts(results: Record) -> Record:
    """The names of the template; rows of the results have words beside their numbers."""
    rows = [_described(results, row) for row in results["rows"]]
    tasks = [_task(own) for own in grouped(rows, "where").values()]
    return {"tasks": tasks, "rows": rows, "certified_gap": CERTIFIED_GAP}


def _described(results: Record, row: Record) -> Record:
    """A row with its label, its loss, and how far its training can be trusted."""
    label, target = results["labels"][row["student"]], results["targets"][row["task"]["target"]]
    student = TRAINED.get(row["student"])
    tuned = student is not None and len(student.lrs) > 1
    return row | {
        "label": label.replace("... ", "softmax attention, 1 head, "),
        "target": target,
        "where": target + (", all channels" if row["task"]["dim"] is None else ""),
        "loss": plus_minus(row["test_loss"], row["test_error"], ".3f", ".4f"),
        "known_floor": known_floor(row),
        "falls": student is not None and still_falls(row),
        "tuned": tuned,
        "edge": tuned and student is not None and row["lr"] == max(student.lrs),
        "least_decay": tuned and student is not None and row["decay"] == min(student.decays),
    }


def still_falls(row: Record) -> bool:
    """Whether a trained student still gained 1 % in the last 100 of its steps."""
    losses = row["curve"]["validation"]
    return len(losses) > LAST and min(losses[-LAST:]) < 0.99 * min(losses[:-LAST])


def _task(rows: list[Record]) -> Record:
    """Who is best at a task, chosen on validation texts: who wins is a matter of test texts."""
    known = {row["student"]: row for row in rows}
    best = sorted(rows, key=itemgetter("validation_loss"))
    convex, other = (next((r for r in best if r["convex"] is kind), None) for kind in (True, False))
    head, poor = known.get("softmax-1"), known.get("undertrained")
    tuned = known.get("softmax-1-literal", head)
    return rows[0]["task"] | {
        "known": known,
        "what": rows[0]["target"],
        "where": rows[0]["where"],
        "convex": convex,
        "other": other,
        "ahead": bool(convex and other and convex["test_loss"] < other["test_loss"]),
        "head": head,
        "poor": poor if tuned else None,
        "tuned": tuned,
    }


# Figures ------------------------------------------------------------------------------------------

COLORS = ALL_COLORS["teacher"]
PAPER = ("undertrained", "simplex", "adam", "positions")
HONEST = ("softmax-1", "softmax-4", "softmax-12", "simplex", "positions", "offsets", "gated-8")
HONEST_VECTOR = ("softmax-1", "softmax-12", "simplex", "adam", "positions")


def draw_all(results: Record) -> dict[str, Figure]:
    """Every figure, by the name of its file."""
    stem = "teacher-mpnet" if results["few"] else "teacher"
    first, whole = rows_of(results, "first", 64), rows_of(results, "attention", 64)
    with rc_context(FONT):
        return {
            f"{stem}-paper.png": draw_curves(results, first, PAPER),
            f"{stem}-first.png": draw_curves(results, first, HONEST_VECTOR),
            f"{stem}-whole.png": draw_curves(results, whole, HONEST),
            f"{stem}-bars.png": draw_bars(results, whole),
        }


def rows_of(results: Record, target: str, dim: int | None) -> dict[str, Record]:
    """The summaries of one task, by student."""
    return {
        row["student"]: row
        for row in results["rows"]
        if (row["task"]["target"], row["task"]["dim"]) == (target, dim)
    }


# Objective and losses over seconds --------------------------------------------------------------


def draw_curves(results: Record, rows: dict[str, Record], names: tuple[str, ...]) -> Figure:
    """Objective, training loss and test loss against seconds; convex students are points."""
    figure, axes = panels(3, (10.4, 3.5))
    shown = [name for name in names if name in rows]
    for ax, (key, title) in zip(axes, PANELS.items(), strict=True):
        for name in shown:
            _line(ax, rows[name], key, COLORS.get(name, MUTED), results["labels"][name])
        ax.set_title(title)
        ax.set_xlabel("seconds of processor time")
        ax.set_xscale("log")
        ax.set_yscale("log")
        few_numbers(ax.xaxis, (1.0,), "g")
        few_numbers(ax.yaxis, (1.0, 2.0, 3.0, 4.0, 5.0, 7.0), "g")
    for name in shown:
        if (floor := known_floor(rows[name])) is not None:  # of the student's class
            look: Any = {"linewidth": 0.9, "dashes": (1, 2), "zorder": 0}
            axes[0].axhline(floor, color=COLORS.get(name, MUTED), **look)
    legend(figure, axes[1])
    return figure


PANELS = {"objective": "objective", "train": "training loss", "test": "test loss"}


def _line(ax: Axes, row: Record, key: str, color: str, label: str) -> None:
    if row["convex"]:
        reached = row["objective"] if key == "objective" else row[f"{key}_loss"]
        mark: Any = {"marker": "D", "markersize": 6, "linestyle": "none", "zorder": 4}
        ax.plot(row["seconds"], reached, color=color, label=label, **mark)
    else:
        curve = row["curve"]
        ax.plot(curve["seconds"][1:], curve[key][1:], color=color, linewidth=1.5, label=label)


# Who wins ---------------------------------------------------------------------------------------


def draw_bars(results: Record, rows: dict[str, Record]) -> Figure:
    """Test losses, lowest first, and seconds with and without tuning."""
    ordered = sorted(rows.values(), key=lambda row: row["test_loss"])
    figure, (left, right) = panels(2, (9.6, 0.25 * len(ordered) + 0.9), sharey=True)
    colors = [HUES[0] if row["convex"] else HUES[1] for row in ordered]
    names = [results["labels"][row["student"]] for row in ordered]
    names = [name.replace("...", "softmax, 1 head,") for name in names]
    losses, dots = ([row[key] for row in ordered] for key in ("test_loss", "test_losses"))
    bars(left, names, colors, losses, dots, size=8)
    left.set_xlabel("test loss; dots are seeds")
    thick: Any = {"linewidth": 3, "alpha": 0.6, "solid_capstyle": "butt"}
    for place, (row, color) in enumerate(zip(ordered, colors, strict=True)):
        seconds = [row["seconds_to_converge"], row["seconds_of_all"]]
        right.plot(seconds, [place] * 2, color=color, **thick)
        right.plot(seconds[0], place, "o", color=color, markersize=5)
    right.tick_params(axis="y", length=0)
    right.set_xscale("log")
    plain_numbers(right.xaxis, "g")
    right.grid(axis="x", color=FAINT, linewidth=0.6)
    right.set_xlabel("seconds to converge (dot), and with tuning")
    return figure
