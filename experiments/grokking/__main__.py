"""Who learns modular division how soon, how lastingly, and why?"""

from pathlib import Path

from .. import lab
from .experiment import run, run_quick
from .page import draw_all, facts

EXPERIMENT = lab.Experiment(Path(__file__).parent, "grokking.md", facts, draw_all)


def main(arguments: list[str] | None = None) -> int:
    parser = lab.parser(EXPERIMENT, __doc__)
    words = "only the gated layer modulo 97, on three splits: about a minute, no page"
    parser.add_argument("--quick", action="store_true", help=words)
    options = parser.parse_args(arguments)
    return (
        lab.quickly(EXPERIMENT, options, run_quick)
        if options.quick
        else EXPERIMENT.main(options, run)
    )


if __name__ == "__main__":
    raise SystemExit(main())
