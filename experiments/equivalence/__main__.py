"""Do networks come down to the certified optimum?"""

from functools import partial
from pathlib import Path

from .. import lab
from .experiment import QUICK, run
from .figure import draw

EXPERIMENT = lab.Experiment(
    Path(__file__).parent,
    "equivalence.md",
    figures=lambda results: {"equivalence.png": draw(results)},
)


def main(arguments: list[str] | None = None) -> int:
    parser = lab.parser(EXPERIMENT, __doc__)
    parser.add_argument("--quick", action="store_true", help="20 starts, 400 steps: a minute")
    options = parser.parse_args(arguments)
    return EXPERIMENT.main(options, partial(run, settings=QUICK) if options.quick else run)


if __name__ == "__main__":
    raise SystemExit(main())
