"""How static are the heads of a real encoder?"""

from pathlib import Path

from .. import lab
from ..sentences import sentence_pairs
from .experiment import facts, figures, run

EXPERIMENT = lab.Experiment(Path(__file__).parent, "probes.md", facts, figures, dpi=110)


def main(arguments: list[str] | None = None) -> int:
    options = lab.parser(EXPERIMENT, __doc__).parse_args(arguments)
    return EXPERIMENT.main(options, lambda ledger: run(ledger, sentence_pairs()))


if __name__ == "__main__":
    raise SystemExit(main())
