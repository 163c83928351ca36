"""Who reproduces what a real encoder's attention writes: softmax, simplex or convex students?"""

import argparse
from pathlib import Path

from .. import lab
from ..sentences import sentence_pairs
from .data import Lessons, Teacher
from .experiment import FEW_STUDIES, QUICK_PAIRS, STUDIES, run, run_quick
from .page import draw_all, facts

HOME = Path(__file__).parent
EXPERIMENT = lab.Experiment(HOME, "teacher.md", facts, draw_all)
MPNET = lab.Experiment(
    HOME / "mpnet", "teacher-mpnet.md", facts, draw_all, template=HOME / "page.md"
)


def main(arguments: list[str] | None = None) -> int:
    parser = lab.parser(EXPERIMENT, __doc__)
    lab.add_encoder(parser, layer=2)
    add = parser.add_argument
    add("--mpnet", action="store_true", help="fewer students, of the sixth layer of mpnet")
    add("--quick", action="store_true", help="six students once, on all channels; no page")
    options = parser.parse_args(arguments)
    command = "make teacher"
    if (options.model, options.layer) != ("minilm", 2):
        command = f"python -m experiments.teacher --model {options.model} --layer {options.layer}"
    if options.mpnet:
        options.model, options.layer, command = "models/all-mpnet-base-v2", 5, "make teacher-mpnet"
        options.out = MPNET.home if options.out == HOME else options.out
    if options.quick:
        return lab.quickly(EXPERIMENT, options, lambda ledger: run_quick(ledger, _lessons(options)))
    studies = FEW_STUDIES if options.mpnet else STUDIES
    return (MPNET if options.mpnet else EXPERIMENT).main(
        options, lambda ledger: run(ledger, _lessons(options), studies, command)
    )


def _lessons(options: argparse.Namespace) -> Lessons:
    """What students learn from; without MRPC, from prose of this project."""
    most = QUICK_PAIRS if options.quick else None
    teacher = Teacher(options.model, options.layer, most=most)
    return Lessons(teacher, sentence_pairs(options.mrpc), options.out / "activations")


if __name__ == "__main__":
    raise SystemExit(main())
