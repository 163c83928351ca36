"""One layer of a Hugging Face model, overheard while the model runs."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

NO_MAPS = (
    "the model does not show its attention maps; load it with attn_implementation='eager', or keep "
    "neither maps nor values."
)

NOT_FINITE = "what the layer reads has NaN or infinity; check the model's weights and precision."

Array = NDArray[np.floating]
Heard = dict[Any, Any]  # by kind, or by module
Layout = Callable[[Any, int], Any]


class _Ended(Exception):
    """The layer has ended; what comes after it is of no interest."""


@dataclass(frozen=True)
class Batch:
    """Tokens of some texts, packed: texts one after the other, without padding."""

    tokens: list[list[str]]
    tensors: dict[str, NDArray]  # as in a shard


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
        layers = _layers(model, config.num_hidden_layers)
        self.n_layers = len(layers)
        self.layer = layers[layer]
        self.attention, self.projection = _find(self.layer)
        self.n_heads = int(config.num_attention_heads)
        weight = self.weight
        self.dim = weight.shape[1]
        self.head_dim = weight.shape[0] // self.n_heads
        self._values: tuple[Any, Layout] | None = None  # found when the model first runs

    @property
    def weight(self) -> Array:
        """Output projection, ``(n_heads * head_dim, d)``."""
        weight = self.projection.weight.detach().float().cpu().numpy()
        conv = type(self.projection).__name__ == "Conv1D"  # of GPT-2: stored the other way round
        return np.ascontiguousarray(weight if conv else weight.T)

    @property
    def bias(self) -> Array:
        """Bias of the output projection, ``(d,)``; zero where it has none."""
        bias = getattr(self.projection, "bias", None)
        if bias is None:
            return np.zeros(self.dim, dtype=np.float32)
        return np.asarray(bias.detach().float().cpu().numpy())

    def fingerprint(self) -> str:
        """SHA-256 of all weights."""
        import torch

        digest = hashlib.sha256()
        for name, value in sorted(self.model.state_dict().items()):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def __call__(self, texts: Sequence[Text], max_length: int, keep: Sequence[str]) -> Batch:
        """Run the model on some texts, as far as the layer."""
        encoded = self.tokenizer(
            *_columns(texts),
            padding=True,
            truncation=True,  # what is longer and not to be cut was refused before
            max_length=max_length,
            return_tensors="pt",
        )
        known = self.tokenizer.model_input_names
        inputs = {key: encoded[key].to(self.model.device) for key in encoded if key in known}
        if "values" in keep and self._values is None:
            heard = self._run(inputs, ("maps",), self._linear_maps())
            self._values = _find_values(heard, self.n_heads)
        heard = self._run(inputs, keep, () if self._values is None else self._values[:1])
        if self._values is not None and "values" in keep:
            module, layout = self._values
            heard["values"] = layout(heard[module], self.n_heads)
        mask = encoded["attention_mask"].numpy().astype(bool)  # (B, n)
        rows = range(len(texts))
        lengths = mask.sum(axis=1)
        segments = [[-1 if s is None else s for s in encoded.sequence_ids(i)] for i in rows]
        offsets = [encoded.encodings[i].offsets for i in rows]
        tensors = {
            "lengths": lengths.astype(np.int32),
            "ids": encoded["input_ids"].numpy()[mask].astype(np.int32),
            "offsets": np.array(offsets, dtype=np.int32)[mask],  # (T, 2)
            "segments": np.array(segments, dtype=np.int8)[mask],
        }
        for kind in keep:
            tensors[kind] = self._packed(kind, heard, mask)
        tokens = [encoded.tokens(i)[:n] for i, n in zip(rows, lengths, strict=True)]
        return Batch(tokens, tensors)

    def _linear_maps(self) -> list[Any]:
        """Modules of the attention that may be the one that makes values."""
        inner = (m for m in self.attention.modules() if not list(m.children()))
        return [m for m in inner if hasattr(m, "weight") and m is not self.projection]

    def _run(self, inputs: dict[str, Any], keep: Sequence[str], also: Sequence[Any]) -> Heard:
        """What is heard while the model runs, as far as the layer; of `also`, what they write."""
        import torch

        with torch.inference_mode(), self._hooks(keep, also) as heard, suppress(_Ended):
            self.model(**inputs, output_attentions="maps" in keep)
        return heard

    def _packed(self, kind: str, heard: Heard, mask: NDArray[np.bool_]) -> Array:
        if kind not in heard:
            raise ValueError(_why_no_maps(heard))
        value = heard[kind].float().cpu().numpy()
        if kind == "maps":  # (B, heads, n, n)
            sizes = mask.sum(axis=1)
            return np.concatenate(
                [A[:, :n, :n].reshape(-1) for A, n in zip(value, sizes, strict=True)]
            )
        packed = value[mask]  # (T, d)
        return packed.reshape(len(packed), *self._shape(kind))

    def _shape(self, kind: str) -> tuple[int, ...]:
        return (self.n_heads, self.head_dim) if kind in ("heads", "values") else (self.dim,)

    @contextmanager
    def _hooks(self, keep: Sequence[str], also: Sequence[Any]) -> Iterator[Heard]:
        """Keeps what passes by while the body runs; a layer that has ended ends the body."""
        heard: Heard = {}

        def reads(_: Any, args: tuple, kwargs: dict[str, Any]) -> None:
            heard["inputs"] = args[0] if args else kwargs.get("hidden_states", kwargs.get("query"))

        def mixes(_: Any, args: tuple, written: Any) -> None:
            heard["heads"], heard["attention"] = args[0], written

        def attends(_: Any, __: tuple, written: Any) -> None:
            for part in written if isinstance(written, tuple) else ():
                if _is_map(part, self.n_heads):
                    heard["maps"] = part

        def writes(module: Any, _: tuple, written: Any) -> None:
            heard[module] = written

        def ends(_: Any, __: tuple, written: Any) -> None:
            parts = written if isinstance(written, tuple) else (written,)
            heard["output"] = next(part for part in parts if part.ndim == 3)  # maps may come first
            raise _Ended

        handles = [
            self.attention.register_forward_pre_hook(reads, with_kwargs=True),
            self.projection.register_forward_hook(mixes),
            *(module.register_forward_hook(writes) for module in also),
            self.layer.register_forward_hook(ends),
        ]
        if "maps" in keep:
            handles += [m.register_forward_hook(attends) for m in self.attention.modules()]
        try:
            yield heard
        finally:
            for handle in handles:
                handle.remove()


def _is_map(part: Any, n_heads: int) -> bool:
    """Whether `part` is attention ``(B, heads, n, n)``: rows sum to one, as biases' do not."""
    if getattr(part, "ndim", 0) != 4 or part.shape[1] != n_heads or part.shape[2] != part.shape[3]:
        return False
    first = part[:, :, 0].float()
    return bool((first >= 0).all() and (abs(first.sum(dim=-1) - 1) < 1e-2).all())


def _why_no_maps(heard: Heard) -> str:
    """Maps of NaN are not known as maps, and the model's way to attend is not to blame."""
    return NO_MAPS if bool(heard["inputs"].isfinite().all()) else NOT_FINITE


# Values -----------------------------------------------------------------------------------------


def _each(written: Any, n_heads: int) -> Any:
    """Values of every head, ``(B, n, heads, head_dim)``."""
    return written.unflatten(-1, (n_heads, -1))


def _grouped(written: Any, n_heads: int, size: int) -> Any:
    """Values that several heads share, repeated for each."""
    few = written.unflatten(-1, (-1, size))  # (B, n, groups, head_dim)
    return few.repeat_interleave(n_heads // few.shape[2], dim=2)


def _tail(written: Any, n_heads: int, size: int) -> Any:
    """Queries, keys and values of all heads one after the other; the last two may be shared."""
    groups = (written.shape[-1] // size - n_heads) // 2
    return _grouped(written[..., -groups * size :], n_heads, size)


def _third_of_each(written: Any, n_heads: int) -> Any:
    """Query, key and value of a head, then those of the next."""
    return _each(written, n_heads).chunk(3, dim=-1)[2]


def _find_values(heard: Heard, n_heads: int) -> tuple[Any, Layout]:
    """The module that makes values, and how: heads are attention times values, which tells."""
    if "maps" not in heard:
        raise ValueError(_why_no_maps(heard))
    heads = _each(heard["heads"], n_heads)  # (B, n, heads, head_dim)
    size = heads.shape[-1]
    layouts = (partial(_grouped, size=size), partial(_tail, size=size), _third_of_each)
    for module, layout in product((m for m in heard if not isinstance(m, str)), layouts):
        try:
            values = layout(heard[module], n_heads)
        except (RuntimeError, IndexError, ZeroDivisionError):  # sizes this layout cannot have
            continue
        if values.shape == heads.shape:
            mixed = (heard["maps"] @ values.transpose(1, 2)).transpose(1, 2)
            if abs(mixed - heads).max() <= 1e-3 * abs(heads).max():
                return module, layout
    raise ValueError(
        "the values that this model's attention averages could not be found; keep other kinds only."
    )


def count_tokens(tokenizer: Any, texts: Sequence[Text]) -> list[int]:
    """Of every text, uncut."""
    return [len(row) for row in tokenizer(*_columns(texts), verbose=False)["input_ids"]]


def _columns(texts: Sequence[Text]) -> tuple[list[str], ...]:
    """One list of texts, or two of pairs."""
    if isinstance(texts[0], str):
        return ([str(text) for text in texts],)
    return [text[0] for text in texts], [text[1] for text in texts]


def _layers(model: Any, count: int) -> Any:
    """The list of layers."""
    from torch.nn import ModuleList

    for module in model.modules():
        if isinstance(module, ModuleList) and len(module) == count and _place(module[0]):
            return module
    raise ValueError(
        f"{type(model).__name__} is of a kind whose self-attention is not known here; known are "
        "BERT, RoBERTa, ELECTRA, DeBERTa, DistilBERT, MPNet, ModernBERT, GPT-2, GPT-Neo, GPT-NeoX, "
        "Llama, Mistral, Qwen, Gemma, OPT, BART, Phi, BLOOM, Falcon and T5."
    )


def _place(layer: Any) -> tuple[str, str] | None:
    names = {name for name, _ in layer.named_modules()}
    return next((place for place in PLACES if place[1] in names), None)


def _find(layer: Any) -> tuple[Any, Any]:
    """Self-attention of a layer, and its output projection."""
    place = _place(layer)
    assert place is not None  # or `_layers` would not have taken it
    return layer.get_submodule(place[0]), layer.get_submodule(place[1])
