"""Do two sentences of MRPC say the same? Probes of frozen states."""

from pathlib import Path

from .. import lab
from ..sentences import sentence_pairs
from .experiment import Frozen, facts, run

EXPERIMENT = lab.Experiment(Path(__file__).parent, "paraphrase.md", facts)


def main(arguments: list[str] | None = None) -> int:
    parser = lab.parser(EXPERIMENT, __doc__)
    lab.add_encoder(parser, layer=5)
    options = parser.parse_args(arguments)
    pairs, folder = sentence_pairs(options.mrpc), options.out / "activations"
    try:
        frozen = Frozen(pairs, folder, options.model, options.layer)
    except ValueError as error:
        parser.error(str(error))
    return EXPERIMENT.main(options, lambda ledger: run(ledger, frozen))


if __name__ == "__main__":
    raise SystemExit(main())
