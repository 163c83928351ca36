"""Real tokens whose positions mean something, small enough to ship; and an algorithmic task."""

from convexformer.datasets._hla import hla
from convexformer.datasets._modular import ModularDivision, modular_division
from convexformer.datasets._motion import motion
from convexformer.datasets._pendigits import pendigits
from convexformer.datasets._satimage import satimage
from convexformer.datasets._splice import splice
from convexformer.datasets._tokens import TokenDataset, one_hot

__all__ = [
    "ModularDivision",
    "TokenDataset",
    "hla",
    "modular_division",
    "motion",
    "one_hot",
    "pendigits",
    "satimage",
    "splice",
]
