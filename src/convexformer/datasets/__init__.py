"""Real tokens whose positions mean something, small enough to ship; and an algorithmic task.

And pairs of sentences, to feed to encoders.
"""

from convexformer.datasets._hla import hla
from convexformer.datasets._modular import ModularDivision, modular_division
from convexformer.datasets._motion import motion
from convexformer.datasets._pairs import SentencePairs, mrpc, prose, sentence_pairs
from convexformer.datasets._pendigits import pendigits
from convexformer.datasets._satimage import satimage
from convexformer.datasets._splice import splice
from convexformer.datasets._tokens import TokenDataset, one_hot

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
