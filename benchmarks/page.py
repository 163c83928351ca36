"""Render ``docs/benchmarks.md`` and its figures from ``results/*.json``, and from nothing else."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from .cells import GRIDS as CELLS
from .contestants import NAMES
from .figures import draw_race, draw_scaling
from .objective import GAPS
from .summary import RESULTS, CellSummary, Standing, read, summaries

DOCS = Path(__file__).parent.parent / "docs"
AT_ONCE = timedelta(hours=2)  # cells measured within it are of one solver
LONG_AGO = "2000-01-01T00:00+00:00"

INTRODUCTION = Path(__file__).with_name("introduction.md")

HOLDS = {True: "yes", False: "**no**", None: "not known"}  # how a goal fared

FEW_PASSES = 5  # hardly more than a certificate's

GRIDS = {
    "standard": ("The grid", "make bench"),
    "large": ("BERT size and real activations", "make bench-large"),
    "quick": ("The quick grid", "make bench-quick"),
    "states": ("Real frozen states", "make bench-states"),
    "drawn": ("Cells that nobody chose", "make bench-drawn"),
}


def render(folder: Path = RESULTS) -> str:
    """The page, from what is in `folder`."""
    parts = [INTRODUCTION.read_text().replace("{found}", _found(read("standard", folder)))]
    for grid, (title, command) in GRIDS.items():
        results = read(grid, folder)
        if results is None:
            continue
        cells = summaries(results)
        parts += [f"## {title}\n", _environment(results, command), _verdict(cells)]
        parts += [_waiting(cells), _missing(grid, results["cells"]), _older(results["cells"])]
        if any(cell.peers for cell in cells):
            parts.append(_figure(grid, cells))
        parts += [_main_table(cells, results["speeds"]), _large_notes(cells)]
        floors = (read("floor", folder) or {"seconds": {}})["seconds"].get(grid, {})
        parts.append(_short_of_goal(cells, results["speeds"], floors))
        if any(cell.peers for cell in cells):
            parts += ["### Everyone\n", _everyone(cells), "### On the way\n", _on_the_way(cells)]
            parts += ["### First calls\n", _first_calls(cells), _unfit(cells)]
    scaling = read("scaling", folder)
    if scaling is not None:
        parts += ["## Scaling\n", _environment(scaling, "make bench-scaling"), _scaling(scaling)]
    return "\n".join(part for part in parts if part)


def _found(results: dict[str, Any] | None) -> str:
    """What the page starts with: who arrived in the standard grid, and how much later than ours."""
    if results is None:
        return "The standard grid was not run yet."
    raced = [cell for cell in summaries(results) if cell.peers]
    current = [cell for cell in raced if not cell.waits]
    waiting = [cell for cell in raced if cell.waits]
    lines = [f"The grid has {len(raced)} cells in which a peer takes part."]
    if waiting:
        many = "All" if not current else str(len(waiting))
        lines.append(
            f"{many} of them wait for a rerun: faster settings of a peer were found after they "
            "were measured, and measuring them again needs an idle machine. No claim rests on "
            f"them today. With the former settings {_arrivals(waiting)}."
        )
    if current:
        absent = [cell for cell in current if cell.best is None]
        bounds = sum(cell.ratio is not None for cell in absent)
        lines.append(
            f"Of the {len(current)} measured with today's settings: {_arrivals(current)}. In "
            f"{bounds} no peer arrived, and the time limit stopped each of them, whatever its "
            f"setting. In {len(absent) - bounds} no peer arrived, but it is not known how long one "
            "would take: some settings were used up, failed, or did not get the whole limit."
        )
    return textwrap.fill(" ".join(lines), 100)


def _arrivals(cells: Sequence[CellSummary]) -> str:
    """How much later than ours the fastest peer arrived, where one did."""
    ratios = [cell.ratio for cell in cells if cell.best is not None and cell.ratio is not None]
    if not ratios:
        return "a peer arrived in none of them"
    low, middle, high = (_plain(float(np.quantile(ratios, q))) for q in (0, 0.5, 1))
    return (
        f"a peer arrived in {len(ratios)} of them, and the fastest took {low} to {high} times as "
        f"long as ours, {middle} times in the median"
    )


def _environment(results: dict[str, Any], command: str) -> str:
    told = results["environment"]
    versions = ", ".join(f"{name} {number}" for name, number in sorted(told["versions"].items()))
    return (
        f"`{command}`, {told['finished'][:16].replace('T', ' ')} UTC, on {told['machine']}; "
        f"Python {told['python']}, {versions}.\n"
    )


def _waiting(cells: Sequence[CellSummary]) -> str:
    """The note of the dagger."""
    count = sum(cell.waits for cell in cells)
    if not count:
        return ""
    return (
        f"† Waits for a rerun ({count} of {len(cells)} cells): settings of a peer were added after "
        "the cell was measured. Best peer, ratio and bound are those of the former settings. "
        "Today's may be faster, so whether such a cell meets a goal that is a ratio is left open.\n"
    )


def _figure(grid: str, cells: Sequence[CellSummary]) -> str:
    words = "Seconds to the gap, by cell and contestant"
    if any(cell.waits for cell in cells):
        words += "; cells with a dagger were measured with the peers' former settings"
    return f"![{words}](images/race-{grid}.svg)\n"


def _missing(grid: str, done: Mapping[str, Any]) -> str:
    names = [cell.name for cell in CELLS[grid]() if cell.name not in done]
    return f"Not run yet, of this grid: {', '.join(names)}.\n" if names else ""


def _older(done: Mapping[str, Any]) -> str:
    """Which cells are not of the last hours of measuring: solvers change."""
    since = {
        name: datetime.fromisoformat(cell.get("measured", LONG_AGO)) for name, cell in done.items()
    }
    names = ", ".join(n for n, then in since.items() if max(since.values()) - then > AT_ONCE)
    words = "Measured earlier, with the solver as it was then, and perhaps on another machine"
    return f"{words}: {names}.\n" if names else ""


def _verdict(cells: Sequence[CellSummary]) -> str:
    certified = sum(cell.ours.seconds is not None for cell in cells)
    lines = [f"Ours met the gap in {certified} of {len(cells)} cells."]
    current = [cell for cell in cells if not cell.waits]
    lost = [cell for cell in cells if cell.ratio is not None and cell.ratio < 1]
    if lost:
        names = ", ".join(f"{cell.name} ({cell.ratio:.2g}x)" for cell in lost)
        lines.append(f"**Lost**, a peer was faster: {names}.")
    elif any(cell.peers for cell in current):
        where = "any cell" if len(current) == len(cells) else "any cell without a dagger"
        lines.append(f"No peer arrived sooner in {where}, with the settings that were tried.")
    sooner = [cell.name for cell in cells if cell.sooner]
    if sooner:
        lines.append(f"To some looser gap one was, on the way: {', '.join(sooner)}.")
    late = [cell.name for cell in cells if cell.late_at_first]
    if late:
        lines.append(f"**First call slower** than a peer's, importing included: {', '.join(late)}.")
    missed = [cell.name for cell in cells if cell.goal is not None and cell.goal[1] is False]
    if missed:
        lines.append(f"Short of the goal: {', '.join(missed)}.")
    unknown = [cell.name for cell in current if cell.goal is not None and cell.goal[1] is None]
    if unknown:
        lines.append(f"Not known whether the goal holds: {', '.join(unknown)}.")
    kind = [cell.name for cell in current if cell.short_by_value]
    if kind:
        words = "Short of it, if runs counted that are done by value only"
        lines.append(f"{words}: {', '.join(kind)}.")
    return " ".join(lines) + "\n"


def _main_table(cells: Sequence[CellSummary], speeds: dict[str, Any]) -> str:
    rows = []
    for cell in cells:
        reading, matrix = cell.limits(speeds)
        N, n, d, c = cell.facts["shape"]
        gates = f" h={cell.facts['gates']}" if cell.facts["gates"] else ""
        rows.append(
            [
                cell.title,
                f"{N}·{n}·{d}·{c}{gates}",
                _seconds(cell.ours),
                _gap(cell),
                _peer(cell),
                _by_value(cell),
                _ratio(cell),
                _goal(cell),
                f"{1e3 * reading:.2g} / {1e3 * matrix:.2g}",
                f"{cell.facts['limit']:.3g}" if cell.peers else "",
            ]
        )
    head = [
        "cell / fraction of beta_max", "N·n·d·c", "ours, s", "gap", "best peer, s",
        "by value, s", "ratio", "goal", "physics, ms", "peers' limit, s",
    ]  # fmt: skip
    return table(head, rows)


def _short_of_goal(
    cells: Sequence[CellSummary], speeds: dict[str, Any], floors: Mapping[str, float]
) -> str:
    """What the goal would leave time for, where it was missed."""
    rows = []
    for cell in cells:
        if cell.allowed is None or cell.goal is None or cell.ours.seconds is None:
            continue
        if cell.goal[1] is not False:
            continue
        took, limits = cell.ours.seconds, cell.limits(speeds)
        rows.append(
            [
                cell.title,
                _plain(1e3 * cell.allowed),
                _plain(1e3 * floors[cell.name]) if cell.name in floors else "",
                *(_plain(time / each) for time in (cell.allowed, took) for each in limits),
                _asked(cell, cell.allowed, *limits, floors.get(cell.name, 0.0)),
            ]
        )
    if not rows:
        return ""
    head = [
        "cell", "the goal allows, ms", "checking, ms", "passes over X", "matrices",
        "ours: passes", "matrices", "the goal asks for",
    ]  # fmt: skip
    return "### Short of the goal\n\n" + table(head, rows)


def _asked(
    cell: CellSummary, allowed: float, reading: float, matrix: float, checking: float
) -> str:
    """What a goal that was missed asks for."""
    if checking > allowed:
        return "more than checking an answer leaves"
    if 2 * checking > allowed:
        return f"{_plain(1e3 * (allowed - checking))} ms beside checking"
    points = len(cell.facts["fractions"])
    passes = allowed / (reading * points)
    if passes < FEW_PASSES:
        return f"{passes:.2g} passes a point, the certificate's among them"
    if allowed < matrix:
        return f"{passes:.0f} passes a point, and no second-order matrix"
    return f"at most {allowed / matrix:.2g} matrices"


def _goal(cell: CellSummary) -> str:
    """What is asked, and whether it holds; a miss stays one when a peer becomes faster."""
    if cell.goal is None:
        return ""
    asked, holds = cell.goal
    open_again = cell.waits and cell.facts["goal"] is None and holds is not False
    return f"{asked} {'open' if open_again else HOLDS[holds]}"


def _gap(cell: CellSummary) -> str:
    asked = "" if cell.facts["gap"] == 1e-6 else f" (asked: {cell.facts['gap']:.0e})"
    return f"{cell.ours.reached:.0e}{asked}"


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _large_notes(cells: Sequence[CellSummary]) -> str:
    """Memory where X is large, and which sentences real activations came from."""
    big = [cell for cell in cells if cell.bytes_of_x > 2e8]
    words = [f"{cell.name} {cell.memory_of_x:.2f}" for cell in big if cell.facts["threads"] > 1]
    lines = ["Highest memory, times X: " + ", ".join(words) + "."] if words else []
    texts = sorted({cell.facts.get("text", "") for cell in cells} - {""})
    lines += [f"Sentences of the encoder cells: {', '.join(texts)}."] if texts else []
    return " ".join(lines) + "\n" if lines else ""


def _seconds(one: Standing) -> str:
    if one.seconds is None or one.spread is None:
        return f"not met (gap {one.reached:.0e})"
    low, high = one.spread
    return f"{one.seconds:.3g} ({low:.3g}–{high:.3g})" if low < high else f"{one.seconds:.3g}"


def _peer(cell: CellSummary) -> str:
    if cell.best is not None:
        return f"{cell.best.name} {_seconds(cell.best)}"
    near = min(cell.peers, key=lambda peer: peer.reached, default=None)
    if near is None:
        return ""
    return f"none ({near.name}: {_how_far(near)})"


def _how_far(one: Standing) -> str:
    """Of a contestant that did not arrive."""
    if one.reached < float("inf"):
        return f"gap {one.reached:.0e}"
    return "time" if one.only_stopped else "failed"


def _by_value(cell: CellSummary) -> str:
    met = [peer for peer in cell.peers if peer.by_value is not None]
    best = min(met, key=lambda peer: peer.by_value or 0.0, default=None)
    return "" if best is None else f"{best.name} {best.by_value:.3g}"


def _ratio(cell: CellSummary) -> str:
    if cell.ratio is None:
        return "not known" if cell.peers and cell.ours.seconds is not None else ""
    digits = 2 if cell.goal is None or cell.goal[1] else 3  # a miss is not rounded away
    words = f"{'' if cell.best else '> '}{cell.ratio:.{digits}g}"
    return words if cell.ratio >= 1 else f"**{words}**"


def _everyone(cells: Sequence[CellSummary]) -> str:
    """Seconds, or the gap that was reached, of every contestant."""
    names = [
        name for name in NAMES if any(s.name == name for c in cells for s in [c.ours, *c.peers])
    ]
    rows = []
    for cell in cells:
        by_name = {one.name: one for one in [cell.ours, *cell.peers]}
        row = []
        for name in names:
            one = by_name.get(name)
            if one is None:
                row.append("–")
            elif one.seconds is None:
                row.append(_how_far(one))
            else:
                row.append(f"{one.seconds:.3g}")
        rows.append([cell.title, *row])
    return table(["seconds", *names], rows)


def _on_the_way(cells: Sequence[CellSummary]) -> str:
    """Seconds to every gap: ours / the best peer."""
    rows = []
    for cell in cells:
        row = [cell.title]
        for gap in GAPS:
            ours = cell.ours.by_gap.get(gap)
            peers = [peer.by_gap[gap] for peer in cell.peers if gap in peer.by_gap]
            row.append(f"{_short(ours)} / {_short(min(peers, default=None))}")
        rows.append(row)
    return table(["ours / best peer, s", *(f"{gap:.0e}" for gap in GAPS)], rows)


def _first_calls(cells: Sequence[CellSummary]) -> str:
    rows = []
    for cell in cells:
        called = [one for one in [cell.ours, *cell.peers] if one.first is not None]
        if called:
            words = [f"{one.name} {one.first:.3g} (+ {one.loading:.2g})" for one in called]
            rows.append([cell.title, "; ".join(words)])
    return table(["cell", "seconds of the first call (+ of importing)"], rows) if rows else ""


def _unfit(cells: Sequence[CellSummary]) -> str:
    reasons: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        for name, why in cell.facts["unfit"].items():
            reasons.setdefault((name, why), []).append(cell.name)
    lines = [
        f"- {name}, {len(found)} {'cell' if len(found) == 1 else 'cells'}: {why}"
        for (name, why), found in reasons.items()
    ]
    return "Who did not take part, and why:\n\n" + "\n".join(lines) + "\n" if lines else ""


def _scaling(results: dict[str, Any]) -> str:
    rows = []
    for name, axis in results["axes"].items():
        sizes = [point["size"] for point in axis["points"]]
        rows.append(
            [
                name,
                ", ".join(map(str, sizes)),
                ", ".join(str(point["active"]) for point in axis["points"]),
                ", ".join(f"{point['cpu']:.3g}" for point in axis["points"]),
                f"{axis['slope']:.2f}",
                ", ".join(f"{point['memory']:.0f}" for point in axis["points"]),
                f"{axis['memory_slope']:.2f}",
                axis["why"],
            ]
        )
    base = ", ".join(f"{name} = {size}" for name, size in results["base"].items())
    head = ["axis", "sizes", "groups in use", "seconds", "slope", "memory, MB", "slope", "why"]
    return (
        f"Ours alone, correlated tokens, squared loss, gap 1e-6 at 0.1 beta_max, from {base}; one "
        "axis doubled at a time, c and h on problems of their own (several outputs, gates). A "
        "slope is of the logarithm against that of the size, over the "
        "last three points. Memory is the highest of the process, less what it takes before the "
        "data are there.\n\n"
        "![Time and memory against size](images/scaling.svg)\n\n" + table(head, rows)
    )


def _short(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.2g}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--docs", type=Path, default=DOCS)
    options = parser.parse_args()
    (options.docs / "images").mkdir(parents=True, exist_ok=True)
    for grid in GRIDS:
        results = read(grid, options.results)
        if results is not None:
            cells = summaries(results)
            if any(cell.peers for cell in cells):
                draw_race(cells, options.docs / "images" / f"race-{grid}.svg")
    scaling = read("scaling", options.results)
    if scaling is not None:
        draw_scaling(scaling, options.docs / "images" / "scaling.svg")
    (options.docs / "benchmarks.md").write_text(render(options.results))


if __name__ == "__main__":
    main()
