"""What if the gated layer stands where one would have put a small transformer?"""

from ..lab import Experiment
from .experiment import run, verdict

EXPERIMENT = Experiment("drop_in", __doc__, "drop-in.md", lambda _: {"verdict": verdict})

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(run))
