"""WHAT is minimised: losses, designs, penalties, the problem and its certificate."""

from .certificate import Certificate
from .designs import Design
from .gated import GatedDesign, Gates
from .losses import Huber, Logistic, Loss, Poisson, Softmax, Squared
from .offsets import OffsetDesign, Offsets
from .penalties import PENALTIES, Nuclear, Penalty, Token, TokenOutput
from .point import Point
from .problem import Problem
from .tokens import TokenDesign

__all__ = [
    "PENALTIES",
    "Certificate",
    "Design",
    "GatedDesign",
    "Gates",
    "Huber",
    "Logistic",
    "Loss",
    "Nuclear",
    "OffsetDesign",
    "Offsets",
    "Penalty",
    "Point",
    "Poisson",
    "Problem",
    "Softmax",
    "Squared",
    "Token",
    "TokenDesign",
    "TokenOutput",
]
