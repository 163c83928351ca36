"""Do two sentences of MRPC say the same? Probes of frozen states."""

from ..lab import Experiment, Ledger, Record
from ..sentences import sentence_pairs
from .experiment import Frozen, facts, run

EXPERIMENT = Experiment("paraphrase", __doc__, "paraphrase.md", facts, layer=5)

if __name__ == "__main__":
    asked = EXPERIMENT.parser().parse_args()

    def learn(ledger: Ledger) -> Record:
        pairs, folder = sentence_pairs(asked.mrpc), asked.out / "activations"
        return run(ledger, Frozen(pairs, folder, asked.model, asked.layer))

    raise SystemExit(EXPERIMENT.main(learn, asked))
