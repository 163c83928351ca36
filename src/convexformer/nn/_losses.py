"""The losses of `convexformer.problem`, for tensors; sums over everything, as in the theorems."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..problem.losses import Huber, Logistic, Loss, Poisson, Softmax, Squared

LOSSES: dict[str, Loss] = {
    "squared": Squared(),
    "huber": Huber(),
    "logistic": Logistic(),
    "softmax": Softmax(),
    "poisson": Poisson(),
}


def total_loss(
    F: Tensor,
    Y: Tensor,
    loss: str | Loss = "squared",
    sample_weight: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    r""":math:`\sum_i a_i\,\mathrm{loss}(F_i, Y_i)`, a scalar.

    Parameters
    ----------
    F : Tensor of shape (N, c) or (N, n, c)
        Scores.
    Y : Tensor of the same shape
        Targets: numbers, counts, -1/+1 for "logistic", rows of probabilities for "softmax".
    loss : {"squared", "huber", "logistic", "softmax", "poisson"} or Loss
        A `Loss` where it has a parameter, such as ``Huber(0.5)``.
    sample_weight : Tensor of shape (N,), optional
    mask : Tensor of bool of shape (N, n), optional
        For scores of positions: True where they count. Targets elsewhere may be anything.
    """
    if F.shape != Y.shape:
        raise ValueError(f"Scores have shape {tuple(F.shape)} and targets {tuple(Y.shape)}.")
    if mask is not None:
        Y = torch.where(mask[..., None], Y, torch.ones_like(Y))
    known = LOSSES.get(loss) if isinstance(loss, str) else loss
    if known is None:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)} or a Loss, got {loss!r}.")
    values = _values(F, Y, known)
    if mask is not None:
        values = torch.where(mask[..., None], values, torch.zeros_like(values))
    values = values.flatten(1).sum(1)  # (N,)
    return values.sum() if sample_weight is None else values @ sample_weight


def _values(F: Tensor, Y: Tensor, loss: Loss) -> Tensor:
    match loss:
        case Squared():
            return 0.5 * (F - Y) ** 2
        case Huber(delta):
            return functional.huber_loss(F, Y, reduction="none", delta=delta)
        case Logistic():
            _require(Y.abs() == 1, "-1 and +1, as the logistic loss has them")
            return functional.softplus(-Y * F, threshold=40.0)  # linear only where that is exact
        case Softmax():
            _require((Y.sum(-1) - 1).abs() < 1e-6, "one-hot rows, as the softmax has them")
            return torch.logsumexp(F, -1, keepdim=True) - (Y * F).sum(-1, keepdim=True)
        case Poisson():
            return torch.exp(F) - Y * F + torch.xlogy(Y, Y) - Y
    raise ValueError(f"{type(loss).__name__} has no version for tensors.")


def _require(holds: Tensor, what: str) -> None:
    if not bool(torch.all(holds)):
        raise ValueError(f"Targets must be {what}. Convert labels first.")
