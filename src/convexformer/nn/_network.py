"""What all networks share: the objective of the theorems, and files."""

from __future__ import annotations

import functools
import inspect
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from .._files import write_whole
from ..problem.losses import Loss
from ._losses import total_loss


class Network(nn.Module, ABC):
    r"""A network with the weight decay of a theorem.

    .. math:: \sum_i a_i\,\mathrm{loss}(F_i, Y_i) + \tfrac\beta2\,\mathrm{decay}
    """

    config: dict[str, Any]
    """Arguments of the constructor but for tensors, which live on as buffers of the same names."""
    kinds: ClassVar[dict[str, type[Network]]] = {}
    """Every class of networks by its name, for files."""
    intercept: Tensor | None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Network.kinds[cls.__name__] = cls
        cls.__init__ = _keeps_config(cls.__init__)  # type: ignore[method-assign]

    def _add_intercept(self, wanted: bool, *shape: int, dtype: torch.dtype | None) -> None:
        """A trained intercept, zero at first, or None."""
        zeros = nn.Parameter(torch.zeros(shape, dtype=dtype))
        self.register_parameter("intercept", zeros if wanted else None)

    def _shifted(self, F: Tensor) -> Tensor:
        """Scores with the intercept, where there is one."""
        return F if self.intercept is None else F + self.intercept

    @property
    def is_convex(self) -> bool:
        """Whether `objective` is convex in the parameters."""
        return False

    @abstractmethod
    def decay(self) -> Tensor:
        """Weight decay, without ``beta / 2``."""

    def objective(
        self,
        X: Tensor,
        Y: Tensor,
        loss: str | Loss = "squared",
        beta: float = 0.0,
        *,
        mask: Tensor | None = None,
        sample_weight: Tensor | None = None,
    ) -> Tensor:
        """Loss over all samples plus ``beta / 2`` times the decay, a scalar.

        Parameters
        ----------
        X : Tensor of shape (N, n, d)
        Y : Tensor of the shape of the network's scores
            Numbers, counts, -1/+1 for "logistic", one-hot rows for "softmax".
        loss : {"squared", "huber", "logistic", "softmax", "poisson"} or Loss
            "huber" has the estimators' default delta; pass ``Huber(delta)`` for another.
        beta : float
            Absolute penalty strength.
        mask : Tensor of bool of shape (N, n), optional
            True where a token is real. Scores of padding, where positions have scores, do not
            count.
        sample_weight : Tensor of shape (N,), optional
        """
        F = self(X, mask)
        counted = mask if F.ndim == 3 else None
        return total_loss(F, Y, loss, sample_weight, counted) + 0.5 * beta * self.decay()

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the network to a safetensors file; :func:`load_network` reads it."""
        if Path(path).exists() and not overwrite:
            raise FileExistsError(f"{path} exists already. Pass overwrite=True to replace it.")
        tensors = {name: value.contiguous() for name, value in self.state_dict().items()}
        description = json.dumps({"class": type(self).__name__, "config": self.config})
        write_whole(path, save(tensors, {"network": description}))


def _keeps_config(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that keeps its arguments in ``config``, but for tensors and the dtype."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def wrapper(self: Network, *args: Any, **kwargs: Any) -> None:
        if "config" not in vars(self):  # else the constructor of a subclass kept its own
            given = signature.bind(self, *args, **kwargs)
            given.apply_defaults()
            options = given.arguments.pop("options", {})
            plain = {k: v for k, v in given.arguments.items() if not isinstance(v, Tensor)}
            self.config = {k: v for k, v in (plain | options).items() if k not in ("self", "dtype")}
        init(self, *args, **kwargs)

    return wrapper


def load_network(path: str | os.PathLike[str]) -> Network:
    """Read a network that its ``save`` wrote.

    Parameters
    ----------
    path : path-like
        A safetensors file.

    Examples
    --------
    >>> import os, tempfile
    >>> from convexformer.nn import SoftmaxAttention, load_network
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     SoftmaxAttention(3, 2).save(os.path.join(folder, "network.safetensors"))
    ...     load_network(os.path.join(folder, "network.safetensors"))
    SoftmaxAttention()
    """
    try:
        with safe_open(path, framework="pt") as file:
            described = json.loads(file.metadata()["network"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        kind, config = Network.kinds[described["class"]], described["config"]
        names = inspect.signature(kind).parameters.keys() & tensors.keys() - config.keys()
        with torch.random.fork_rng(devices=[]):  # the start it draws is overwritten
            network = kind(**config, **{name: tensors[name] for name in names})
        network.load_state_dict(tensors, assign=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # as many kinds as there are ways to damage a file
        raise ValueError(
            f"{path} holds no network that a network's save wrote, or is damaged "
            f"({type(error).__name__}: {error}). Save the network again."
        ) from error
    return network


def real_tokens(X: Tensor, mask: Tensor | None) -> Tensor:
    """`X` with zeros at padding, whatever stood there."""
    return X if mask is None else torch.where(mask[..., None], X, torch.zeros_like(X))


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raise unless `value` is one of `known`."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}.")
