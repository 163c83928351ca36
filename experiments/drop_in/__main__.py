"""What if the gated layer stands where one would have put a small transformer?"""

from pathlib import Path

from .. import lab
from .experiment import run, verdict

EXPERIMENT = lab.Experiment(
    Path(__file__).parent, "drop-in.md", lambda results: {"verdict": verdict}
)


def main(arguments: list[str] | None = None) -> int:
    return EXPERIMENT.main(lab.parser(EXPERIMENT, __doc__).parse_args(arguments), run)


if __name__ == "__main__":
    raise SystemExit(main())
