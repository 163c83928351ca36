"""How much more should blocks behind gates cost?"""

from ..lab import Experiment
from .experiment import facts, run

EXPERIMENT = Experiment("gate_weight", __doc__, "gate-weight.md", facts, partial=True)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(run))
