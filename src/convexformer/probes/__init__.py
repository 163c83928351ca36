"""How much of a head of a real transformer is static mixing? Certified, on held-out text."""

from ._probe import HeadProbe, LayerProbe, probe

__all__ = ["HeadProbe", "LayerProbe", "probe"]
