"""Real tokens whose positions mean something, small enough to ship; and an algorithmic task.

And pairs of sentences, to feed to encoders.
"""

from ._measured import hla, motion, pendigits, satimage, splice
from ._modular import ModularDivision, modular_division
from ._pairs import SentencePairs, mrpc, prose, sentence_pairs
from ._tokens import TokenDataset, one_hot

__all__ = [
    "ModularDivision",
    "SentencePairs",
    "TokenDataset",
    "hla",
    "modular_division",
    "motion",
    "mrpc",
    "one_hot",
    "pendigits",
    "prose",
    "satimage",
    "sentence_pairs",
    "splice",
]
