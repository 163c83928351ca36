"""A network of gated layers: an embedding, layers, a linear readout."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ._network import Network
from .layers import GatedLayer


@dataclass(frozen=True)
class GatedTransformerConfig:
    """What a :class:`GatedTransformer` looks like.

    Attributes
    ----------
    n_tokens : int
        Length n of a sequence; shorter ones are padded and masked.
    n_outputs : int
        Width c of the scores.
    vocabulary : int, optional
        Size V of the vocabulary, where inputs are int tokens ``(B, n)``: a trained embedding.
    n_features : int, optional
        Width of inputs ``(B, n, n_features)`` that a trained linear map brings to `dim`.
        With neither, inputs are ``(B, n, dim)`` and are read as they are.
    dim : int
        Width d of tokens between layers.
    n_layers, n_gates : int
        Number of layers, and of gates in each.
    outputs : {"vector", "sequence"}
        Scores of the whole sequence ``(B, c)``, or of every position ``(B, n, c)``. For a vector
        the last layer has a single output position.
    readout : bool
        Whether a linear map reads scores from a last layer of width `dim`; else the last layer's
        outputs are the scores.
    causal : bool
        Whether scores of a position depend on earlier tokens and itself only.
    frozen_gates : bool
        Whether the gates of all layers read the embedding as it was drawn, not as it is.
    always_open : bool
        Whether the first gate of every layer is open whatever it reads.
    penalty : {"token", "token-output"}
        As in :class:`GatedLayer`.
    embedding_scale : float
        Standard deviation of the embedding as it is drawn.
    tables : bool
        Whether the first layer may share the work among samples with the same tokens, where batches
        are large beside the vocabulary. Turn it off under :func:`torch.func.vmap`.
    """

    n_tokens: int
    n_outputs: int
    vocabulary: int | None = None
    n_features: int | None = None
    dim: int = 32
    n_layers: int = 1
    n_gates: int = 96
    outputs: str = "vector"
    readout: bool = True
    causal: bool = False
    frozen_gates: bool = False
    always_open: bool = False
    penalty: str = "token"
    embedding_scale: float = 0.3
    tables: bool = True

    def __post_init__(self) -> None:
        if self.vocabulary is not None and self.n_features is not None:
            raise ValueError("Inputs are either tokens or features: give vocabulary or n_features.")
        if self.n_layers < 1:
            raise ValueError(f"n_layers must be at least 1, got {self.n_layers}.")


class GatedTransformer(Network):
    r"""Embedding, gated layers without skips or norms, linear readout.

    .. math:: X^0 = E[\mathrm{tokens}], \qquad X^l = \mathrm{GatedLayer}_l(X^{l-1}), \qquad
              F = X^L R + b

    Its training is **not** a convex problem, save where ``is_convex`` says so: layers multiply each
    other, and gates are worked out from what is being trained. Positions are told apart by weights
    of their own, so that there is no positional encoding.

    Parameters
    ----------
    settings : GatedTransformerConfig, or a dict of its fields
    dtype : torch.dtype, optional

    Examples
    --------
    >>> import torch
    >>> from convexformer.nn import GatedTransformer, GatedTransformerConfig
    >>> settings = GatedTransformerConfig(n_tokens=4, n_outputs=97, vocabulary=99)
    >>> network = GatedTransformer(settings)
    >>> network(torch.randint(99, (10, 4))).shape, network.is_convex
    (torch.Size([10, 97]), False)
    """

    first_embedding: Tensor | None

    def __init__(
        self,
        settings: GatedTransformerConfig | dict[str, Any],
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if isinstance(settings, dict):
            settings = GatedTransformerConfig(**settings)
        self.settings, self.config = settings, {"settings": asdict(settings)}
        self.embedding = _embedding(settings, dtype)
        self.layers = nn.ModuleList(
            _layer(settings, last, dtype) for last in [False] * (settings.n_layers - 1) + [True]
        )
        self.readout = (
            nn.Linear(settings.dim, settings.n_outputs, dtype=dtype) if settings.readout else None
        )
        frozen = self.embedding.weight if settings.frozen_gates and self.embedding else None
        self.register_buffer("first_embedding", None if frozen is None else frozen.detach().clone())

    @property
    def is_convex(self) -> bool:
        """Whether `objective` is convex in the parameters that ask for gradients.

        With gates that do not depend on what is trained, the scores are linear in each of
        embedding, layers and readout, and so convex where only one of them is trained.
        """
        stages = [self.embedding, *self.layers, self.readout]
        parameters = [[] if stage is None else list(stage.parameters()) for stage in stages]
        trained = [any(p.requires_grad for p in group) for group in parameters]
        below = trained[: self.settings.n_layers]  # a layer above reads what is trained
        return sum(trained) <= 1 and (self.settings.frozen_gates or not any(below))

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores ``(B, c)``, or ``(B, n, c)`` for a sequence.

        Parameters
        ----------
        inputs : Tensor
            Int tokens ``(B, n)`` if there is a vocabulary, else ``(B, n, n_features or dim)``.
        mask : Tensor of bool of shape (B, n), optional
            True where a token is real.
        """
        fixed = self._gate_inputs(inputs)
        first, *others = self.gated_layers
        gates = None if fixed is None else first.gates(fixed, mask)
        # a table's shapes depend on the data, so that it cannot be compiled
        tables = self.settings.tables and not torch.compiler.is_compiling()
        if tables and isinstance(self.embedding, nn.Embedding):
            X = first.from_table(inputs, self.embedding.weight, mask, gates)
        else:
            X = first(inputs if self.embedding is None else self.embedding(inputs), mask, gates)
        for layer in others:  # X (B, n, d), at last (B, n, d) or (B, d)
            X = layer(X, mask, None if fixed is None else layer.gates(fixed, mask))
        return X if self.readout is None else self.readout(X)

    @property
    def gated_layers(self) -> list[GatedLayer]:
        return cast(list[GatedLayer], list(self.layers))

    def _gate_inputs(self, inputs: Tensor) -> Tensor | None:
        """What frozen gates read, ``(B, n, d)``; None where gates read what their layer reads."""
        if not self.settings.frozen_gates:
            return None
        if self.embedding is None:
            return inputs
        weight = cast(Tensor, self.first_embedding)
        return torch.func.functional_call(self.embedding, {"weight": weight}, (inputs,))

    def decay(self) -> Tensor:
        """Twice the layers' penalties, and the sum of squares of embedding and readout.

        Intercepts are not decayed.
        """
        ends = [part for part in (self.embedding, self.readout) if part is not None]
        decays = [part.weight.square().sum() for part in ends]
        return torch.stack([layer.decay() for layer in self.gated_layers] + decays).sum()

    def parameter_groups(self, **penalised: Any) -> list[dict[str, Any]]:
        """Parameters for an optimiser: the layers' Z first, all others second.

        Parameters
        ----------
        **penalised
            Options of the first group alone, such as ``beta=1e-3`` for :class:`ProximalAdam` or
            ``weight_decay=0`` for any.
        """
        Zs, axes = [layer.Z for layer in self.gated_layers], self.gated_layers[0].group_axes
        others = [p for p in self.parameters() if all(p is not Z for Z in Zs)]
        return [{"params": Zs, "group_axes": axes, **penalised}, {"params": others}]


def _embedding(
    settings: GatedTransformerConfig, dtype: torch.dtype | None
) -> nn.Embedding | nn.Linear | None:
    embedding: nn.Embedding | nn.Linear
    if settings.vocabulary is not None:
        embedding = nn.Embedding(settings.vocabulary, settings.dim, dtype=dtype)
        scale = settings.embedding_scale
    elif settings.n_features is not None:
        embedding = nn.Linear(settings.n_features, settings.dim, bias=False, dtype=dtype)
        scale = settings.n_features**-0.5
    else:
        return None
    nn.init.normal_(embedding.weight, std=scale)
    return embedding


def _layer(settings: GatedTransformerConfig, last: bool, dtype: torch.dtype | None) -> GatedLayer:
    to_scores = last and not settings.readout
    shared = ("n_tokens", "dim", "n_gates", "causal", "penalty")
    layer = GatedLayer(
        n_outputs=settings.n_outputs if to_scores else settings.dim,
        outputs=settings.outputs if last else "sequence",
        intercept=to_scores,
        dtype=dtype,
        **{name: getattr(settings, name) for name in shared},
    )
    if settings.always_open:
        layer.thresholds[0] = -torch.inf
    return layer
