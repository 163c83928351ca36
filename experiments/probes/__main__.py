"""How static are the heads of a real encoder?"""

from ..lab import Experiment
from ..sentences import sentence_pairs
from .experiment import facts, figures, run

EXPERIMENT = Experiment("probes", __doc__, "probes.md", facts, figures, dpi=110)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(lambda ledger: run(ledger, sentence_pairs())))
