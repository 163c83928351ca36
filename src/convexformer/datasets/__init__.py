"""Real tokens whose positions mean something, small enough to ship."""

from ._measured import hla, motion, pendigits, satimage, splice
from ._tokens import TokenDataset, one_hot

__all__ = [
    "TokenDataset",
    "hla",
    "motion",
    "one_hot",
    "pendigits",
    "satimage",
    "splice",
]
