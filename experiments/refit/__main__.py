"""What does `refit` gain, and what does it cost?"""

from ..lab import Experiment
from .experiment import facts, run

EXPERIMENT = Experiment("refit", __doc__, "refit.md", facts)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(run))
