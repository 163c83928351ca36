"""Students of single heads, which all average the head's own values and differ in their weights.

All heads of a layer are taught at once: their parameters and their losses are apart.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

BATCH = 32


@dataclass(frozen=True)
class Lesson:
    """Texts, padded. Outputs of every head have unit variance in the texts to train on."""

    X: Tensor  # (N, n, d), what scores are made of
    V: Tensor  # (N, n, heads, e), what is averaged
    Y: Tensor  # (N, n, heads, e), what is to be written
    mask: Tensor  # (N, n), bool

    def batch(self, rows: Tensor) -> Self:
        """Some texts, no longer than the longest of them."""
        n = int(self.mask[rows].sum(dim=1).max())
        parts = (whole[rows, :n] for whole in (self.X, self.V, self.Y, self.mask))
        return type(self)(*parts)


class Student(nn.Module):
    """``F = A V W + b`` for every head, with weights A that subclasses say."""

    def __init__(self, heads: int, e: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.eye(e).repeat(heads, 1, 1))
        self.b = nn.Parameter(torch.zeros(heads, e))

    def attention(self, X: Tensor, mask: Tensor) -> Tensor:
        """``(N, heads, n, n)``, zero at padding."""
        raise NotImplementedError

    def forward(self, lesson: Lesson) -> Tensor:
        A = self.attention(lesson.X, lesson.mask)
        mixed = torch.einsum("ihts,ishe->ithe", A, lesson.V)
        return torch.einsum("ithe,hef->ithf", mixed, self.W) + self.b

    def errors(self, lesson: Lesson) -> Tensor:
        """Squared error of every head, mean over real targets: ``(heads,)``."""
        squares = (self(lesson) - lesson.Y).square().sum(dim=3) * lesson.mask[:, :, None]
        return squares.sum(dim=(0, 1)) / lesson.mask.sum()


class SoftmaxStudent(Student):
    """Weights by content: softmax of products of queries and keys, over the root of their size."""

    def __init__(self, heads: int, e: int, d: int, init: float = 0.02) -> None:
        super().__init__(heads, e)
        self.Q = nn.Parameter(init * torch.randn(d, heads * e))
        self.K = nn.Parameter(init * torch.randn(d, heads * e))
        self.q = nn.Parameter(torch.zeros(heads * e))

    def attention(self, X: Tensor, mask: Tensor) -> Tensor:
        shape = self.W.shape[:2]  # (heads, e)
        queries = (X @ self.Q + self.q).unflatten(2, shape).transpose(1, 2)
        keys = (X @ self.K).unflatten(2, shape).transpose(1, 2)  # (N, heads, n, e)
        scores = queries @ keys.transpose(2, 3) / math.sqrt(shape[1])  # (N, heads, n, n)
        return scores.masked_fill(~mask[:, None, None], -math.inf).softmax(dim=3)


class SimplexStudent(Student):
    """Weights by position: rows on the simplex, the same for every text."""

    def __init__(self, heads: int, e: int, n: int) -> None:
        super().__init__(heads, e)
        self.theta = nn.Parameter(torch.zeros(heads, n, n))

    def attention(self, X: Tensor, mask: Tensor) -> Tensor:
        n = mask.shape[1]
        rows = self.theta[:, :n, :n].expand(len(mask), -1, -1, -1)
        return rows.masked_fill(~mask[:, None, None], -math.inf).softmax(dim=3)


def train(student: Student, lesson: Lesson, rate: float, steps: int, seed: int = 0) -> Student:
    """Minimise the errors of all heads by Adam, its learning rate falling along a cosine."""
    optimizer = torch.optim.Adam(student.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(lesson.mask), (BATCH,), generator=generator)
        loss = student.errors(lesson.batch(rows)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return student.eval()


def shares(student: Student, lesson: Lesson, means: Tensor) -> NDArray[np.float64]:
    """Share of the variance of every head's output that the student explains, ``(heads,)``."""
    spread = ((lesson.Y - means).square().sum(dim=3) * lesson.mask[:, :, None]).sum(dim=(0, 1))
    with torch.no_grad():
        left = student.errors(lesson) * lesson.mask.sum()
    return np.asarray((1 - left / spread).double().numpy())
