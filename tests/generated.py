"""A fixed generator of small problems, most of them nasty, and a report on how a solver fares.

Every problem follows from its name, ``family/loss/penalty/intercept``; adding a family changes no
other problem. Each is solved at three fractions of its ``beta_max``. By hand::

    python -m tests.generated                       # everything, one table
    python -m tests.generated --loss logistic --family mean
    python -m tests.generated --case hardest/logistic/token/intercept --strategy newton
"""

from __future__ import annotations

import argparse
import itertools
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from convexformer.solvers import Solution, solve
from convexformer.solvers.choose import STRATEGIES

from .families import FAMILIES, Sketch, draw
from .raw import LOSSES, Raw

FRACTIONS = (0.5, 0.1, 0.01)


@dataclass(frozen=True)
class Case:
    """One generated problem, known by its name."""

    family: str
    loss: str
    penalty: str
    intercept: bool

    @property
    def name(self) -> str:
        last = "intercept" if self.intercept else "none"
        return f"{self.family}/{self.loss}/{self.penalty}/{last}"

    def raw(self) -> Raw:
        """The arrays of the problem."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        shape, edit = FAMILIES[self.family]
        sizes = [2, 3, 4] if self.loss == "softmax" else [1, 2] if "-" in self.penalty else [1, 3]
        sketch = Sketch(rng, self.loss, int(rng.choice(sizes)), shape)
        edit(sketch)
        Y = sketch.targets()
        return Raw(
            sketch.X,
            Y,
            self.loss,
            self.penalty,
            self.intercept,
            sketch.mask,
            sketch.sample_weight,
            sketch.penalty_weights,
        )


def small(
    loss: str,
    penalty: str = "token-output",
    intercept: bool = True,
    masked: bool = False,
    c: int = 1,
    seed: int = 0,
    weighted: bool = False,
) -> Raw:
    """A harmless problem of 30 samples, 5 tokens and 3 channels, for tests of one thing."""
    rng = np.random.default_rng([seed, zlib.crc32(loss.encode()), c])
    sketch = Sketch(rng, loss, c + (loss == "softmax" and c == 1), (30, 5, 3))
    sketch.X += 0.5
    if masked:
        sketch.mask = rng.random((30, 5)) < 0.7
        sketch.X[~sketch.mask] = np.nan
    if weighted:
        sketch.sample_weight = rng.integers(0, 4, size=30).astype(float)
        sketch.penalty_weights = rng.uniform(0.5, 2.0, size=5)
    Y = sketch.targets()
    if weighted:  # every class keeps a sample of positive weight
        sketch.sample_weight[:3] = 1.0
        Y[:3] = draw(rng, rng.normal(size=(3, Y.shape[1])), loss, 0.0)
    return Raw(
        sketch.X,
        Y,
        loss,
        penalty,
        intercept,
        sketch.mask,
        sketch.sample_weight,
        sketch.penalty_weights,
    )


def cases() -> list[Case]:
    """All problems, in a fixed order."""
    penalties = ("token-output", "token")
    return [
        Case(*choice) for choice in itertools.product(FAMILIES, LOSSES, penalties, (True, False))
    ]


@dataclass
class Fit:
    """What came of one problem at one fraction of its `beta_max`."""

    case: Case
    fraction: float
    solution: Solution
    seconds: float

    @property
    def relative_gap(self) -> float:
        return self.solution.certificate.relative_gap

    def __str__(self) -> str:
        certificate = self.solution.certificate
        return (
            f"{self.case.name:52s} {self.fraction:5.2f} {self.seconds:8.3f} s "
            f"{self.solution.n_iter:6d} it  gap {certificate.relative_gap:9.2e}  "
            f"P {certificate.primal:.6g}"
        )


def fits(
    chosen: Iterable[Case], fractions: Sequence[float] = FRACTIONS, **options: object
) -> Iterator[Fit]:
    """Solve problems from a cold start; those without a finite minimiser are left out."""
    for case in chosen:
        raw = case.raw()
        if not raw.has_minimiser:
            continue
        problem = raw.problem()
        for fraction in fractions:
            start = time.perf_counter()
            solution = solve(problem, fraction * problem.beta_max, **options)
            yield Fit(case, fraction, solution, time.perf_counter() - start)


def report(done: Sequence[Fit], tol: float, slowest: int) -> str:
    """Fits, failures and times by family and by loss, and the worst of them by name."""
    lines = []
    keys: list[Callable[[Fit], str]] = [lambda f: f.case.family, lambda f: f.case.loss]
    for key in keys:
        table: dict[str, list[Fit]] = defaultdict(list)
        for fit in done:
            table[key(fit)].append(fit)
        lines.append(f"{'':24s}{'fits':>6s}{'failed':>8s}{'worst gap':>12s}{'seconds':>10s}")
        lines += [_row(name, some, tol) for name, some in table.items()]
        lines.append("")
    lines += [_row("all", done, tol), "", "failed:"]
    lines += [f"  {fit}" for fit in done if not fit.relative_gap <= tol]
    lines += ["", "most negative gap:", f"  {min(done, key=lambda f: f.relative_gap)}"]
    lines += ["", "slowest:"]
    lines += [f"  {fit}" for fit in sorted(done, key=lambda f: -f.seconds)[:slowest]]
    return "\n".join(lines)


def _row(name: str, some: Sequence[Fit], tol: float) -> str:
    failed = sum(not fit.relative_gap <= tol for fit in some)
    worst = max(fit.relative_gap for fit in some)
    return f"{name:24s}{len(some):6d}{failed:8d}{worst:12.1e}{sum(f.seconds for f in some):10.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Solve a selection of the generated problems and print a report."""
    parser = argparse.ArgumentParser(description="Solve generated problems and print a report.")
    parser.add_argument("--family", help="part of a family's name")
    parser.add_argument("--loss", choices=[*LOSSES])
    parser.add_argument("--penalty", choices=["token-output", "token"])
    parser.add_argument("--case", help="full name of one problem")
    parser.add_argument("--fraction", type=float, action="append", help="of beta_max")
    parser.add_argument("--strategy", choices=[*STRATEGIES], help="the quickest, if not given")
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--max-iter", type=int)
    parser.add_argument("--max-time", type=float, default=10.0, help="seconds per fit")
    parser.add_argument("--every", type=int, default=1, help="only every such problem")
    parser.add_argument("--slowest", type=int, default=10, help="how many to list")
    parser.add_argument("--verbose", action="store_true", help="print every fit as it ends")
    args = parser.parse_args(arguments)
    chosen = [
        case
        for case in cases()
        if (args.family is None or args.family in case.family)
        and args.loss in (None, case.loss)
        and args.penalty in (None, case.penalty)
        and args.case in (None, case.name)
    ][:: args.every]
    options = {"tol": args.tol, "strategy": args.strategy, "max_time": args.max_time}
    if args.max_iter is not None:
        options["max_iter"] = args.max_iter
    run = partial(fits, fractions=args.fraction or FRACTIONS, **options)
    done = []
    for fit in run(chosen):
        done.append(fit)
        if args.verbose:
            print(fit, flush=True)
    if not done:
        raise SystemExit("No such problem, or none of them has a finite minimiser.")
    print(report(done, args.tol, args.slowest))


if __name__ == "__main__":
    main()
