"""What do students of a head look at? Attention maps beside their teacher's."""

from pathlib import Path

from .. import lab
from ..sentences import sentence_pairs
from .experiment import Lecture, Settings, run

EXPERIMENT = lab.Experiment(Path(__file__).parent)  # shown by the page of probes


def main(arguments: list[str] | None = None) -> int:
    parser = lab.parser(EXPERIMENT, __doc__)
    lab.add_encoder(parser, layer=2)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of every trained student")
    options = parser.parse_args(arguments)
    settings = Settings(model=options.model, layer=options.layer, seeds=options.seeds)

    def run_it(ledger: lab.Ledger) -> lab.Record:
        pairs = sentence_pairs(options.mrpc)
        return run(ledger, Lecture(options.out / "activations", settings, pairs))

    return EXPERIMENT.main(options, run_it)


if __name__ == "__main__":
    raise SystemExit(main())
