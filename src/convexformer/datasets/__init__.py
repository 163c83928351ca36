"""Real tokens whose positions mean something, small enough to ship; and an algorithmic task."""

from ._measured import hla, motion, pendigits, satimage, splice
from ._modular import ModularDivision, modular_division
from ._tokens import TokenDataset, one_hot

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
