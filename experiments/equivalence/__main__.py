"""Do networks come down to the certified optimum?"""

from ..lab import Experiment
from .experiment import run
from .figure import draw

EXPERIMENT = Experiment(
    "equivalence",
    __doc__,
    "equivalence.md",
    figures=lambda results: {"equivalence.png": draw(results)},
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(run))
