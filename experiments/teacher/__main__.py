"""Who reproduces what a real encoder's attention writes: softmax, simplex or convex students?"""

from ..lab import Experiment
from ..sentences import sentence_pairs
from .data import Lessons, Teacher
from .experiment import FEW_STUDIES, QUICK_PAIRS, STUDIES, run, run_quick
from .page import draw_all, facts

EXPERIMENT = Experiment("teacher", __doc__, "teacher.md", facts, draw_all, layer=2)
MPNET = Experiment("teacher/mpnet", __doc__, "teacher-mpnet.md", facts, draw_all, "../page.md")


def main(arguments: list[str] | None = None) -> int:
    parser = EXPERIMENT.parser()
    add = parser.add_argument
    add("--mpnet", action="store_true", help="fewer students, of the sixth layer of mpnet")
    add("--quick", action="store_true", help="six students once, on all channels; no page")
    asked = parser.parse_args(arguments)
    experiment, studies, command = EXPERIMENT, STUDIES, "make teacher"
    if (asked.model, asked.layer) != ("minilm", 2):
        command = f"python -m experiments.teacher --model {asked.model} --layer {asked.layer}"
    if asked.mpnet:
        experiment, studies, command = MPNET, FEW_STUDIES, "make teacher-mpnet"
        asked.model, asked.layer = "models/all-mpnet-base-v2", 5
        asked.out = MPNET.home if asked.out == EXPERIMENT.home else asked.out

    def lessons() -> Lessons:
        teacher = Teacher(asked.model, asked.layer, most=QUICK_PAIRS if asked.quick else None)
        return Lessons(teacher, sentence_pairs(asked.mrpc), asked.out / "activations")

    if asked.quick:
        return EXPERIMENT.look(lambda ledger: run_quick(ledger, lessons()), asked)
    return experiment.main(lambda ledger: run(ledger, lessons(), studies, command), asked)


if __name__ == "__main__":
    raise SystemExit(main())
