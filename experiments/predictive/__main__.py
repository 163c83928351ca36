"""How well do convex models predict, beside others with the same budget?"""

from pathlib import Path

from .. import lab
from .experiment import facts, run

EXPERIMENT = lab.Experiment(Path(__file__).parent, "predictive.md", facts)


def main(arguments: list[str] | None = None) -> int:
    return EXPERIMENT.main(lab.parser(EXPERIMENT, __doc__).parse_args(arguments), run)


if __name__ == "__main__":
    raise SystemExit(main())
