"""What do students of a head look at? Attention maps beside their teacher's."""

from ..lab import Experiment, Ledger, Record
from ..sentences import sentence_pairs
from .experiment import Lecture, Settings, run

EXPERIMENT = Experiment("maps", __doc__, layer=2)  # shown by the page of probes

if __name__ == "__main__":
    asked = EXPERIMENT.parser().parse_args()

    def learn(ledger: Ledger) -> Record:
        settings = Settings(model=asked.model, layer=asked.layer)
        pairs = sentence_pairs(asked.mrpc)
        return run(ledger, Lecture(asked.out / "activations", settings, pairs))

    raise SystemExit(EXPERIMENT.main(learn, asked))
