"""Figures in scikit-learn's manner: ``Display.from_*(...)`` draws, ``.plot(ax=...)`` redraws."""

from .certificate import CertificateDisplay
from .path import PathDisplay
from .probe import ProbeDisplay
from .token_map import TokenMapDisplay

__all__ = ["CertificateDisplay", "PathDisplay", "ProbeDisplay", "TokenMapDisplay"]
