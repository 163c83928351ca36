"""How much of a head of a real transformer is static mixing? Certified, on held-out text."""

from ._probe import check_different, probe
from ._results import HeadProbe, LayerProbe

__all__ = ["HeadProbe", "LayerProbe", "check_different", "probe"]
