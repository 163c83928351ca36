"""How well do convex models predict, beside others with the same budget?"""

from ..lab import Experiment
from .experiment import facts, run

EXPERIMENT = Experiment("predictive", __doc__, "predictive.md", facts)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(run))
