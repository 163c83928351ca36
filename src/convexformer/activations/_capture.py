"""One layer of a Hugging Face model, overheard while the model runs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ._store import TextActivations
from ._texts import Text

# Where, within a layer, self-attention is and the linear map that mixes its heads at the end.
PLACES = (
    ("attention", "attention.output.dense"),  # BERT, RoBERTa, ELECTRA, DeBERTa
    ("attention", "attention.out_lin"),  # DistilBERT
    ("attention", "attention.attn.o"),  # MPNet
    ("attn", "attn.Wo"),  # ModernBERT
    ("attn", "attn.c_proj"),  # GPT-2
    ("attn.attention", "attn.attention.out_proj"),  # GPT-Neo
    ("self_attn", "self_attn.o_proj"),  # Llama, Mistral, Qwen, Gemma
    ("self_attn", "self_attn.out_proj"),  # OPT, BART
    ("self_attn", "self_attn.dense"),  # Phi
    ("self_attention", "self_attention.dense"),  # BLOOM, Falcon
    ("attention", "attention.dense"),  # GPT-NeoX
    ("layer.0.SelfAttention", "layer.0.SelfAttention.o"),  # T5
)

CLOSE = 1e-2  # of the largest entry: rounding of models in bfloat16; others' values are far off
Array = NDArray[np.floating]


class _Ended(Exception):
    """The layer has ended; what comes after it is of no interest."""


class _Products(TorchFunctionMode):
    """Overhears products of matrices, whatever module computes them.

    Attributes
    ----------
    last : tuple of Tensor
        The factors of the last product from the left with square matrices. When attention ends,
        these are its maps and its values.
    """

    last: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("matmul", "__matmul__", "bmm"):
            factors: list[Tensor] = [*args, *(kwargs or {}).values()]
            if len({*factors[0].shape[-2:]}) == 1:
                self.last = factors[0], factors[1]
        return function(*args, **(kwargs or {}))


class Listener:
    """A model, its tokenizer, and the layer to listen to.

    Parameters
    ----------
    model, tokenizer : of transformers
    layer : int
        Counted from 0.
    """

    def __init__(self, model: Any, tokenizer: Any, layer: int) -> None:
        config = model.config
        if getattr(config, "is_encoder_decoder", False):
            model = model.get_encoder()
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError("the tokenizer must be a fast one, which knows where tokens stand.")
        self.model = model.eval()
        self.tokenizer = copy.deepcopy(tokenizer)
        self.tokenizer.padding_side = "right"  # real tokens then begin at position 0
        if self.tokenizer.pad_token is None:  # decoders need none; masked, any token will do
            self.tokenizer.pad_token = self.tokenizer.eos_token or self.tokenizer.unk_token
        count = int(config.num_hidden_layers)
        self.layer, self.attention, self.projection = _find(model, count, layer)
        self.n_heads = int(config.num_attention_heads)
        _, self.head_dim, dim = self.output_projection()["weight"].shape
        self.sizes = {"n_layers": count, "n_heads": self.n_heads}
        self.sizes |= {"head_dim": self.head_dim, "dim": dim}

    def output_projection(self) -> dict[str, Array]:
        """Its `weight (n_heads, head_dim, d)` and its `bias (d,)`, zero where it has none."""
        weight = self.projection.weight.detach().float().cpu()
        if type(self.projection).__name__ != "Conv1D":  # of GPT-2: stored the other way round
            weight = weight.T
        bias = getattr(self.projection, "bias", None)
        bias = torch.zeros(weight.shape[1]) if bias is None else bias.detach().float().cpu()
        return {
            "weight": weight.reshape(self.n_heads, -1, weight.shape[1]).numpy(),
            "bias": bias.numpy(),
        }

    def __call__(
        self, texts: Sequence[Text], max_length: int, keep: Sequence[str], dtype: str
    ) -> list[TextActivations]:
        """What is kept of some texts."""
        encoded = self.tokenizer(
            list(texts),
            padding=True,
            truncation=True,  # what is longer and not to be cut was refused before
            max_length=max_length,
            return_tensors="pt",
        )
        heard = self._run(encoded, maps="maps" in keep or "values" in keep)
        heard["heads"] = heard["heads"].unflatten(-1, (self.n_heads, self.head_dim))
        kept = {kind: heard[kind].float().cpu().numpy() for kind in keep}
        read = []
        for i, n in enumerate(encoded["attention_mask"].sum(dim=1).tolist()):
            places = {
                kind: np.s_[i, :, :n, :n] if kind == "maps" else np.s_[i, :n] for kind in keep
            }
            segments = [-1 if s is None else s for s in encoded.sequence_ids(i)]
            text = TextActivations(
                tokens=encoded.tokens(i)[:n],
                offsets=np.array(encoded.encodings[i].offsets[:n], dtype=np.int32),
                segments=np.array(segments[:n], dtype=np.int8),
                **{kind: _cast(kept[kind][places[kind]], kind, dtype) for kind in keep},
            )
            read.append(text)
        return read

    def _run(self, encoded: Any, maps: bool) -> dict[str, Any]:
        """What is heard while the model runs, by kind; a layer that has ended ends the run."""
        heard: dict[str, Any] = {}
        products = _Products()

        def reads(_: Any, args: tuple, kwargs: dict[str, Any]) -> None:
            heard["inputs"] = args[0] if args else kwargs.get("hidden_states", kwargs.get("query"))

        def mixes(_: Any, args: tuple, written: Tensor) -> None:
            heard["heads"], heard["attention"] = args[0], written
            if maps:
                heard["maps"], heard["values"] = self._averaged(products.last, args[0])

        def ends(_: Any, __: tuple, written: Any) -> None:
            parts = written if isinstance(written, tuple) else (written,)
            heard["output"] = next(part for part in parts if part.ndim == 3)  # maps may come first
            raise _Ended

        handles = (
            self.attention.register_forward_pre_hook(reads, with_kwargs=True),
            self.projection.register_forward_hook(mixes),
            self.layer.register_forward_hook(ends),
        )
        known = {key: encoded[key] for key in encoded if key in self.tokenizer.model_input_names}
        inputs = {key: value.to(self.model.device) for key, value in known.items()}
        try:
            with torch.inference_mode(), products, suppress(_Ended):
                self.model(**inputs)
        finally:
            for handle in handles:
                handle.remove()
        return heard

    def _averaged(self, product: tuple[Tensor, Tensor], heads: Tensor) -> tuple[Tensor, Tensor]:
        """Maps ``(B, h, n, n)`` and values ``(B, n, h, e)``, if heads are what they give."""
        (B, n, _), h, e = heads.shape, self.n_heads, self.head_dim
        maps, values = product
        if maps.numel() == B * h * n * n and values.shape[-2:] == (n, e):
            maps = maps.reshape(B, h, n, n)
            values = values.reshape(B, -1, n, e).expand(B, h, n, e)  # all heads may share them
            mixed = (maps.float() @ values.float()).transpose(1, 2).flatten(2)
            if not (mixed - heads).abs().max() > CLOSE * heads.abs().max():  # NaN is told of later
                return maps, values.transpose(1, 2)
        raise ValueError(
            "the model does not show its attention maps and the values that they average; load it "
            "with attn_implementation='eager', or keep neither maps nor values."
        )


def _cast(value: Array, kind: str, dtype: str) -> Array:
    with np.errstate(over="ignore"):
        cast = value.astype(dtype, copy=False)
    if not np.all(np.isfinite(cast)):
        raise ValueError(
            f"{kind} has values that {dtype} cannot hold: NaN or infinity (for float16, all above "
            "65,504). Check the model's weights and precision."
        )
    return cast


def _find(model: Any, count: int, layer: int) -> tuple[Any, Any, Any]:
    """A layer of the model, its self-attention, and the output projection of that."""
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            parts = dict(module[layer].named_modules())
            for attention, projection in PLACES:
                if projection in parts:
                    return module[layer], parts[attention], parts[projection]
    raise ValueError(
        f"{type(model).__name__} is of a kind whose self-attention is not known here; known are "
        "BERT, RoBERTa, ELECTRA, DeBERTa, DistilBERT, MPNet, ModernBERT, GPT-2, GPT-Neo, GPT-NeoX, "
        "Llama, Mistral, Qwen, Gemma, OPT, BART, Phi, BLOOM, Falcon and T5."
    )
