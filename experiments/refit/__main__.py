"""What does `refit` gain, and what does it cost?"""

from pathlib import Path

from .. import lab
from .experiment import facts, run

EXPERIMENT = lab.Experiment(Path(__file__).parent, "refit.md", facts)


def main(arguments: list[str] | None = None) -> int:
    return EXPERIMENT.main(lab.parser(EXPERIMENT, __doc__).parse_args(arguments), run)


if __name__ == "__main__":
    raise SystemExit(main())
