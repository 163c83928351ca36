"""What all experiments share: finished jobs in a file, the machine, pages, and a command line."""

import argparse
import json
import math
import os
import platform
import sys
import time
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, cast

import jinja2
import numpy as np
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PACKAGES = ("convexformer", "numpy", "scipy", "scikit-learn", "torch")

Record = dict[str, Any]
Report = Callable[[int, str], None]


# Jobs -------------------------------------------------------------------------------------------


class KeyedJob:
    """A part of an experiment: a dataclass that its fields, if shown, and `rules` tell apart."""

    warn: Literal["ignore", "error"] | None = None  # what becomes of warnings

    @property
    def key(self) -> Record:
        """What a finished job must agree with to count as this one."""
        values = {one.name: getattr(self, one.name) for one in fields(cast(Any, self)) if one.repr}
        inner = {
            name: asdict(v) for name, v in values.items() if hasattr(v, "__dataclass_fields__")
        }
        return values | inner | self.rules()

    def rules(self) -> Record:
        """What it must agree with beside its fields."""
        return {}

    def run(self) -> Record:
        raise NotImplementedError

    def do(self) -> Record:
        """What it tells, on one thread."""
        with one_thread(), warnings.catch_warnings():
            if self.warn:
                warnings.simplefilter(self.warn)
            return self.run()


def append(file: Path, record: Record) -> None:
    """Add a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps(record) + "\n")


def read_lines(file: Path) -> Iterator[Record]:
    """The records that :func:`append` added; none where there is no file yet."""
    text = file.read_text() if file.exists() else ""
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{file}, line {number}, is not a record ({error}). Remove the line; its job will "
                "be done again."
            ) from error


def replace(file: Path, content: str) -> None:
    """Write a file whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.draft")
    draft.write_text(content)
    draft.replace(file)


class OutOfTime(Exception):
    """There is no time for another job, or no data: it is left, and what is finished is kept."""


class Ledger:
    """Does the jobs that are not done yet, one after the other, and remembers all.

    Parameters
    ----------
    folder : Path
        For ``jobs.jsonl``, a line per finished job.
    max_minutes : float, optional
        No job is begun after so long.
    report : callable, optional
        Called as ``report(done, what)`` before every job that has to be run.
    """

    def __init__(
        self,
        folder: Path,
        max_minutes: float | None = None,
        report: Report = lambda done, what: None,
    ) -> None:
        self.file, self.report = folder / "jobs.jsonl", report
        self.lines = list(read_lines(self.file))
        self.records: list[Record] = []
        self.reasons: set[str] = set()  # why jobs are left
        self.deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes

    def do(self, job: KeyedJob, *, at_once: bool = False) -> Record:
        """The record of a job, from the file or by running it; `at_once`: even if time is over."""
        key = job.key
        record = next((line for line in reversed(self.lines) if is_of(key, line)), None)
        if record is None:
            late = self.deadline is not None and time.monotonic() > self.deadline
            if late and not at_once:
                raise OutOfTime("There is no time to begin another job.")
            self.report(len(self.records), str(job))
            record = key | job.do() | stamp()
            append(self.file, record)
            self.lines.append(record)
        self.records.append(record)
        return record

    @contextmanager
    def part(self) -> Iterator[None]:
        """A part of the work that may be left for later, when there is no time to begin its jobs.

        Parts after it are still asked for, so that what they have finished is in the records.
        """
        try:
            yield
        except OutOfTime as reason:
            self.reasons.add(str(reason))

    def do_each(self, jobs: Iterable[KeyedJob]) -> list[Record]:
        """The records of those `jobs` that are finished or for which there is time."""
        found = []
        for job in jobs:
            with self.part():
                found.append(self.do(job))
        return found

    def header(self) -> Record:
        """What all results begin with: whether they are complete, their date, and the machines."""
        return {
            "complete": not self.reasons,
            "date": max((record["date"] for record in self.records), default=None),
            "environments": environments(self.records),
        }


def is_of(key: Record, line: Record) -> bool:
    """Whether a finished job agrees with all that this key says."""
    return all(name in line and alike(value, line[name]) for name, value in key.items())


def alike(a: Any, b: Any) -> bool:
    """Whether values are equal as JSON has them, but for the last bits of numbers.

    Logarithms differ there from one machine to another, and with them grids of penalties: what was
    finished elsewhere is finished. JSON has lists where Python has tuples.

    Examples
    --------
    >>> alike({"betas": (0.1 + 0.2,)}, {"betas": [0.3]}), alike([0.3], [0.31])
    (True, False)
    """
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(alike(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-12)
    return bool(a == b)


def read_config(beside: str, name: str) -> Record:
    """A file of settings beside a module, in TOML."""
    return tomllib.loads((Path(beside).parent / name).read_text())


# The machine ------------------------------------------------------------------------------------


def stamp() -> Record:
    """When and on what a job was run."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].split(":")[1].strip() if models else cpu
    environment = {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": 1,
        "versions": {package: version(package) for package in PACKAGES}
        | {"python": platform.python_version()},
    }
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    return {"date": date, "environment": environment}


def environments(jobs: Iterable[Record]) -> list[Record]:
    """The different environments of `jobs`, in the order they are met."""
    each = [job["environment"] for job in jobs]
    return list({json.dumps(one, sort_keys=True): one for one in each}.values())


@contextmanager
def one_thread() -> Iterator[None]:
    """So that seconds can be compared, and sums are always taken in the same order.

    Random numbers of others are left as they were.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1), torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)


# Numbers and pages ------------------------------------------------------------------------------


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean; None of fewer than two values."""
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None


def averaged(values: Sequence[float]) -> Record:
    """Mean and standard error."""
    mean = float(np.mean(values)) if len(values) else None
    return {"mean": mean, "standard_error": standard_error(values)}


def picked(record: Record, names: Iterable[str]) -> Record:
    """What a record says under these names."""
    return {name: record[name] for name in names}


def grouped(records: Iterable[Record], *names: str) -> dict[tuple, list[Record]]:
    """Records that say the same under `names`, by what they say.

    Examples
    --------
    >>> grouped([{"seed": 0, "a": 1}, {"seed": 1, "a": 1}], "a")
    {(1,): [{'seed': 0, 'a': 1}, {'seed': 1, 'a': 1}]}
    """
    groups: dict[tuple, list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[name] for name in names), []).append(record)
    return groups


def listed(records: Sequence[Record], names: Iterable[str], ending: str = "") -> Record:
    """What all records say under each name, as lists."""
    return {name + ending: [record[name] for record in records] for name in names}


def plus_minus(
    mean: float | None, error: float | None, spec: str = ".3f", error_spec: str = ""
) -> str:
    """A mean and its standard error, where there is one.

    Examples
    --------
    >>> plus_minus(0.5, 0.0123), plus_minus(0.5, None), plus_minus(0.5, 0.0123, "+.4f", ".4f")
    ('0.500 ± 0.012', '0.500', '+0.5000 ± 0.0123')
    """
    if mean is None:
        return ""
    shown = f"{mean:{spec}}"
    return shown if error is None else f"{shown} ± {error:{error_spec or spec}}"


def rounded(values: Any, digits: int = 4) -> list[float]:
    """So many significant digits: enough for any figure, and half the file."""
    return [float(f"{value:.{digits}g}") for value in values]


def columns(curve: Sequence[Record], names: Iterable[str], digits: int = 4) -> Record:
    """A curve, a list of points, as a list of numbers by name."""
    return {name: rounded([point[name] for point in curve], digits) for name in names}


def environment_line(one: Record) -> str:
    """An environment in words."""
    versions = ", ".join(f"{name} {number}" for name, number in one["versions"].items())
    return f"{one['cpu']}, {one['cores']} cores of which {one['threads']} was used; {versions}"


def render(template: Path, **names: Any) -> str:
    """A page: its template (Jinja's language) with `names` in their places.

    ``{{ 0.1234 | f(".1%") }}`` formats a number as Python does, and ``{{ x | plus_minus(e) }}``
    adds a standard error. A name that is missing is an error.
    """
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {"f": format, "plus_minus": plus_minus, "environment": environment_line}
    return pages.get_template(template.name).render(**names)


Run = Callable[[Ledger], Record]


# The command line -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Experiment:
    """An experiment as a command: jobs, then ``results.json``, then figures and a page.

    Attributes
    ----------
    name : str
        Its folder in ``experiments``: of its jobs, its results, and ``page.md``, the template of
        its page.
    words : str, optional
        What it asks.
    page : str
        Name of the page in ``docs``; without one there are results alone.
    facts : callable
        From the results to the names in the template.
    figures : callable, optional
        From the results to figures by file name, which go into ``figures/`` beside the page.
    template : str
        Where it is in the folder.
    dpi : int
        Of figures.
    partial : bool
        Whether some of the jobs are enough for a page.
    layer : int, optional
        Of a real encoder, counted from 0, unless the command says otherwise.
    """

    name: str
    words: str | None
    page: str = ""
    facts: Callable[[Record], Record] = dict
    figures: Callable[[Record], dict[str, Figure]] = lambda results: {}
    template: str = "page.md"
    dpi: int = 200
    partial: bool = False
    layer: int | None = None

    @property
    def home(self) -> Path:
        return HERE / self.name

    def parser(self) -> argparse.ArgumentParser:
        """What every experiment understands, and those with a real encoder."""
        made = argparse.ArgumentParser(
            prog=f"python -m experiments.{self.name}",
            description=self.words,
            epilog="Finished jobs are kept: after an interruption, run the same command again.",
        )
        add = made.add_argument
        add("--out", type=Path, default=self.home, metavar="DIR", help="jobs and results")
        add("--page", type=Path, metavar="FILE", help="where to write the page")
        add("--max-minutes", type=float, help="begin no job after so long")
        add("--page-only", action="store_true", help="from results.json; run nothing")
        if self.layer is not None:
            words = "folder of MRPC's files, or CONVEXFORMER_MRPC; else prose takes their place"
            add("--mrpc", type=Path, metavar="DIR", help=words)
            add("--model", default="minilm", help="an encoder, as for convexformer extract")
            add("--layer", type=int, default=self.layer, help="counted from 0")
        return made

    def main(self, run: Run, options: argparse.Namespace | None = None) -> int:
        """Do what the command says; 1 if the time limit left jobs to do.

        `run` makes the results, of which :meth:`Ledger.header` is a part.
        """
        options = options or self.parser().parse_args()
        file, left = options.out / "results.json", False
        if not options.page_only:
            ledger = Ledger(options.out, options.max_minutes, tell)
            try:
                results = run(ledger)
            except KeyboardInterrupt:
                print(f"Stopped; finished jobs are kept in {options.out}: run again to go on.")
                return 130
            replace(file, json.dumps(results) + "\n")
            left = not results["complete"]
            if left:
                print(*sorted(ledger.reasons), "Not all jobs are done: run again to go on.")
            if left and not self.partial:
                return 1
        if self.page:
            place = DOCS if options.out == self.home else options.out
            self.publish(json.loads(file.read_text()), options.page or place / self.page)
        return int(left)

    def look(self, run: Run, options: argparse.Namespace) -> int:
        """A short look that is kept apart: its page, by the template ``quick.md``, is printed."""
        folder = self.home / "quick" if options.out == self.home else options.out
        results = run(Ledger(folder, options.max_minutes, tell))
        print(render(self.home / "quick.md", **results))
        return 0

    def publish(self, results: Record, page: Path) -> None:
        """Write the page of `results`, and its figures beside it."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt

        for name, figure in self.figures(results).items():
            place = page.parent / "figures" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(place, dpi=self.dpi)
            plt.close(figure)
        replace(page, self.text(results))
        print(f"Written: {page}")

    def text(self, results: Record) -> str:
        """The page of `results`."""
        return render(self.home / self.template, **results | self.facts(results))


def tell(done: int, what: str) -> None:
    """A line on stderr with the job that is begun."""
    print(f"{done} jobs done; {what}", file=sys.stderr, flush=True)
