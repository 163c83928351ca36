"""Who learns modular division how soon, how lastingly, and why?"""

from ..lab import Experiment
from .experiment import run, run_quick
from .page import draw_all, facts

EXPERIMENT = Experiment("grokking", __doc__, "grokking.md", facts, draw_all)


def main(arguments: list[str] | None = None) -> int:
    parser = EXPERIMENT.parser()
    words = "only the gated layer modulo 97, on three splits: about a minute, no page"
    parser.add_argument("--quick", action="store_true", help=words)
    asked = parser.parse_args(arguments)
    return EXPERIMENT.look(run_quick, asked) if asked.quick else EXPERIMENT.main(run, asked)


if __name__ == "__main__":
    raise SystemExit(main())
