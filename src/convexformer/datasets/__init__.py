"""Real sequences whose positions mean something, small enough to ship with the package."""

from convexformer.datasets._hla import hla
from convexformer.datasets._splice import splice
from convexformer.datasets._tokens import TokenDataset, one_hot

__all__ = ["TokenDataset", "hla", "one_hot", "splice"]
