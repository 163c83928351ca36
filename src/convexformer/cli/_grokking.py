"""``convexformer reproduce grokking``: the paper's second half, or a quick look at it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperCommand

from . import _options as opt
from ._console import InputError, check_place, emit, friendly, out
from ._experiments import Folder, MaxMinutes, load, progress, publish


class SeveralValues(TyperCommand):
    """A command whose repeatable options take several values: ``--layers 1 2 4``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read ``--layers 1 2 4`` as ``--layers 1 --layers 2 --layers 4``."""
        several = {name for p in self.params if getattr(p, "multiple", 0) for name in p.opts}
        spread: list[str] = []
        current, fresh = None, False  # the option being read, and whether it has no value yet
        for word in args:
            if word.startswith("-"):
                current, fresh = (word, True) if word in several else (None, False)
            elif current is not None and not fresh:
                spread.append(current)
            else:
                fresh = False
            spread.append(word)
        return super().parse_args(ctx, spread)


PAGE = "grokking.md"

Page = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Where to write the page; its figures go into figures/ beside it.",
        show_default=f"{PAGE} in DIR",
    ),
]
Moduli = Annotated[list[int] | None, typer.Option("--modulus", help="97, 15 or both.")]
Layers = Annotated[list[int] | None, typer.Option("--layers", help="Of 1, 2 and 4, which depths.")]
NAMES = (  # grokking.MODELS in words: that needs torch, which help must do without
    "gated, power, mlp, power-default, grokfast, prox, power-wide, orthograd, gated-2, paper, "
    "simplex, gated-4, power-2, paper-default, no-decay, grokfast-default, hypercube, "
    "square, power-4"
)
Models = Annotated[
    list[str] | None,
    typer.Option("--models", metavar="NAME", help=f"Only these, of {NAMES}."),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Seeds of weights and batches, modulo 97; contestants with dear steps have 2 or 3 at "
        "most.",
        show_default="5",
    ),
]
Quick = Annotated[
    bool,
    typer.Option(
        "--quick", help="Only the gated layer on mod 97, three splits: about a minute. No page."
    ),
]


@friendly
def grokking(
    folder: Folder = Path("grokking"),
    page: Page = None,
    modulus: Moduli = None,
    layers: Layers = None,
    models: Models = None,
    seeds: Seeds = None,
    quick: Quick = False,
    max_minutes: MaxMinutes = None,
    json: opt.Json = False,
) -> None:
    """Who learns modular division how soon, how lastingly, and why?

    Every finished job is kept in DIR at once: after an interruption, run the same command again.
    The last line of a quick run is one JSON object.
    """
    check_place(folder)
    experiment = load("grokking", figures=True)
    if quick:
        if any(given is not None for given in (page, modulus, layers, models, seeds, max_minutes)):
            raise InputError("--quick is always the same run: leave the other options out.")
        with progress(folder) as report:
            records = experiment.run_quick(folder, report)
        if not json:
            _tell_quick(records)
        emit({key: [record[name] for record in records] for key, name in QUICK_FIELDS.items()})
        return
    wanted = {"moduli": modulus, "layers": layers, "models": models}
    given: dict[str, Any] = {name: tuple(values) for name, values in wanted.items() if values}
    settings = experiment.Settings(**given | ({} if seeds is None else {"seeds": seeds}))
    if seeds is not None and not settings.contestants:
        raise InputError("modulo 15 every network has the same 20 splits: leave --seeds out.")
    with progress(folder) as report:
        results = experiment.run(folder, settings, max_minutes=max_minutes, report=report)
    files = publish(results, folder / PAGE if page is None else page, "grokking")
    if json:
        told = ("command", "complete", "date", "settings", "rows")
        emit({key: results[key] for key in told} | {"files": [folder / "results.json", *files]})
    else:
        _tell(results, files)


QUICK_FIELDS = {
    "steps_to_99": "steps_to_99",
    "persistent": "persistent",
    "seconds": "seconds_to_99",
    "lowest_after": "lowest_after",
}


def _tell_quick(records: list[dict[str, Any]]) -> None:
    from ._words import plain_table

    numbers = ("split", "99 % at step", "seconds", "lowest after")
    table = plain_table(*numbers, "stays for 500 steps", right=numbers)
    for record in records:
        stays = record["persistent"]
        table.add_row(
            str(record["split"]),
            *(_number(record[key]) for key in ("steps_to_99", "seconds_to_99")),
            "-" if record["lowest_after"] is None else f"{record['lowest_after']:.2%}",
            Text("yes" if stays else "no", "green" if stays else "bold red"),
        )
    out().print("A gated layer learns division modulo 97 from half of the 9,312 equations.\n")
    out().print(table)
    out().print("\nSeconds are of processor time, of training alone, on one thread.")


def _number(value: float | None) -> str:
    return "never" if value is None else f"{value:.4g}"


def _tell(results: dict[str, Any], files: list[Path]) -> None:
    from convexformer.experiments.grokking_claims import seconds_of

    from ._words import plain_table

    numbers = ("steps", "seconds", "at 99 %", "stay")
    table = plain_table("to 99 % of the test half", *numbers, right=numbers)
    rows = [row for row in results["rows"] if row["study"] == "contest"]
    for row in rows:
        table.add_row(
            results["labels"][row["name"]],
            _number(row["steps_to_99"]),
            _number(None if row["steps_to_99"] is None else seconds_of(results, row)),
            f"{row['reached']} of {row['seeds']}",
            f"{row['persistent']} of {row['seeds']}",
        )
    if rows:
        out().print(table)
    if any(record["setting"] for record in results["small"]):
        out().print(_small_table(results["small"]))
    if not results["complete"]:
        out().print("\nNot all jobs are done: run the same command again to go on.")
    shown = Text.assemble("\nPage and figures: ", (", ".join(map(str, files)), "bold"))
    out().print(shown, soft_wrap=True)


def _small_table(records: list[dict[str, Any]]) -> Any:
    from statistics import median

    from ._words import plain_table

    numbers = ("to train on", "best", "at 99 %")
    table = plain_table("modulo 15, on 20 splits", *numbers, right=numbers)
    for record in (r for r in records if r["setting"]):
        reached = sum(step is not None for step in record["first_99"])
        best = f"{median(record['best']):.1%}"
        table.add_row(record["name"], f"{record['share']:.0%}", best, f"{reached} of 20")
    return table
