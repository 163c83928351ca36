"""One layer of a Hugging Face model, overheard while the model runs."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
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

CLOSE = 1e-2  # of the largest entry: rounding of models in bfloat16; others' values are far off
Array = NDArray[np.floating]
Heard = dict[Any, Any]  # tensors by kind; what modules of the attention write, by module


class _Ended(Exception):
    """The layer has ended; what comes after it is of no interest."""


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
        weight = self.projection.weight.detach().float().cpu().numpy()
        if type(self.projection).__name__ != "Conv1D":  # of GPT-2: stored the other way round
            weight = weight.T
        weight = np.ascontiguousarray(weight).reshape(self.n_heads, -1, weight.shape[1])
        bias = getattr(self.projection, "bias", None)
        zeros = np.zeros(weight.shape[2], dtype=np.float32)
        return {
            "weight": weight,
            "bias": zeros if bias is None else bias.detach().float().cpu().numpy(),
        }

    def fingerprint(self) -> str:
        """SHA-256 of all weights."""
        import torch

        digest = hashlib.sha256()
        for name, value in sorted(self.model.state_dict().items()):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def __call__(
        self, texts: Sequence[Text], max_length: int, keep: Sequence[str]
    ) -> tuple[list[list[str]], dict[str, NDArray]]:
        """Tokens of some texts and what a shard holds of them, one text after the other."""
        encoded = self.tokenizer(
            *_columns(texts),
            padding=True,
            truncation=True,  # what is longer and not to be cut was refused before
            max_length=max_length,
            return_tensors="pt",
        )
        heard = self._run(encoded, maps="maps" in keep or "values" in keep)
        if "values" in keep:
            heard["values"] = _values(heard, self.n_heads, self.head_dim)
        mask = encoded["attention_mask"].numpy().astype(bool)  # (B, n)
        rows, lengths = range(len(texts)), mask.sum(axis=1)
        segments = [[-1 if s is None else s for s in encoded.sequence_ids(i)] for i in rows]
        offsets = [encoded.encodings[i].offsets for i in rows]
        tensors = {
            "lengths": lengths.astype(np.int32),
            "offsets": np.array(offsets, dtype=np.int32)[mask],  # (T, 2)
            "segments": np.array(segments, dtype=np.int8)[mask],
        }
        for kind in keep:
            value = heard[kind].float().cpu().numpy()
            if kind == "maps":  # (B, heads, n, n)
                parts = [A[:, :n, :n].ravel() for A, n in zip(value, lengths, strict=True)]
                tensors[kind] = np.concatenate(parts)
            else:
                tensors[kind] = value[mask]  # (T, d), or of values (T, heads, head_dim)
        if "heads" in keep:
            tensors["heads"] = tensors["heads"].reshape(-1, self.n_heads, self.head_dim)
        return [encoded.tokens(i)[: lengths[i]] for i in rows], tensors

    def _run(self, encoded: Any, maps: bool) -> Heard:
        """What is heard while the model runs; a layer that has ended ends the run."""
        import torch

        heard: Heard = {}

        def reads(_: Any, args: tuple, kwargs: dict[str, Any]) -> None:
            heard["inputs"] = args[0] if args else kwargs.get("hidden_states", kwargs.get("query"))

        def mixes(_: Any, args: tuple, written: Any) -> None:
            heard["heads"], heard["attention"] = args[0], written

        def writes(module: Any, _: tuple, written: Any) -> None:
            parts = written if isinstance(written, tuple) else (written,)
            heard[module] = parts[0]
            for part in parts:
                if _is_map(part, self.n_heads):
                    heard["maps"] = part

        def ends(_: Any, __: tuple, written: Any) -> None:
            parts = written if isinstance(written, tuple) else (written,)
            heard["output"] = next(part for part in parts if part.ndim == 3)  # maps may come first
            raise _Ended

        handles = [
            self.attention.register_forward_pre_hook(reads, with_kwargs=True),
            self.projection.register_forward_hook(mixes),
            self.layer.register_forward_hook(ends),
        ]
        if maps:
            handles += [m.register_forward_hook(writes) for m in self.attention.modules()]
        known = {key: encoded[key] for key in encoded if key in self.tokenizer.model_input_names}
        inputs = {key: value.to(self.model.device) for key, value in known.items()}
        try:
            with torch.inference_mode(), suppress(_Ended):
                self.model(**inputs, output_attentions=maps)
        finally:
            for handle in handles:
                handle.remove()
        if maps and "maps" not in heard:
            if not heard["inputs"].isfinite().all():
                raise ValueError(
                    "what the layer reads has NaN or infinity; check the model's weights and "
                    "precision."
                )
            raise ValueError(
                "the model does not show its attention maps; load it with "
                "attn_implementation='eager', or keep neither maps nor values."
            )
        return heard


def _is_map(part: Any, n_heads: int) -> bool:
    """Whether `part` is attention ``(B, heads, n, n)``: rows sum to one, as biases' do not."""
    if getattr(part, "ndim", 0) != 4 or part.shape[1] != n_heads or part.shape[2] != part.shape[3]:
        return False
    first = part[:, :, 0].float()
    return bool((first >= 0).all() and (abs(first.sum(dim=-1) - 1) < 1e-2).all())


def _values(heard: Heard, n_heads: int, size: int) -> Any:
    """Values ``(B, n, heads, head_dim)``: heads are attention times values, which tells them."""
    heads = heard["heads"].unflatten(-1, (n_heads, size)).float()
    for module in [key for key in heard if not isinstance(key, str)]:
        for values in _layouts(heard[module], n_heads, size):
            mixed = (heard["maps"].float() @ values.float().transpose(1, 2)).transpose(1, 2)
            if abs(mixed - heads).max() <= CLOSE * abs(heads).max():
                return values
    raise ValueError(
        "the values that this model's attention averages could not be found; keep other kinds only."
    )


def _layouts(written: Any, n_heads: int, size: int) -> Iterator[Any]:
    """Ways to read values of all heads out of what a module writes; several heads may share one."""
    if getattr(written, "ndim", 0) != 3 or written.shape[-1] % size:
        return
    blocks = written.unflatten(-1, (-1, size))  # (B, n, blocks, head_dim)
    last = blocks.shape[2] - n_heads
    for few in (
        blocks,  # values alone
        blocks[:, :, n_heads + last // 2 :],  # queries, keys and values of all heads in turn
        blocks[:, :, 2::3],  # query, key and value of a head, then those of the next
    ):
        if few.shape[2] and n_heads % few.shape[2] == 0:
            yield few.repeat_interleave(n_heads // few.shape[2], dim=2)


def count_tokens(tokenizer: Any, texts: Sequence[Text]) -> list[int]:
    """Of every text, uncut."""
    return [len(row) for row in tokenizer(*_columns(texts), verbose=False)["input_ids"]]


def _columns(texts: Sequence[Text]) -> tuple[list[str], ...]:
    """One list of texts, or two of pairs."""
    if isinstance(texts[0], str):
        return ([str(text) for text in texts],)
    return [text[0] for text in texts], [text[1] for text in texts]


def _find(model: Any, count: int, layer: int) -> tuple[Any, Any, Any]:
    """A layer of the model, its self-attention, and the output projection of that."""
    from torch.nn import ModuleList

    for module in model.modules():
        if isinstance(module, ModuleList) and len(module) == count:
            parts = dict(module[layer].named_modules())
            for attention, projection in PLACES:
                if projection in parts:
                    return module[layer], parts[attention], parts[projection]
    raise ValueError(
        f"{type(model).__name__} is of a kind whose self-attention is not known here; known are "
        "BERT, RoBERTa, ELECTRA, DeBERTa, DistilBERT, MPNet, ModernBERT, GPT-2, GPT-Neo, GPT-NeoX, "
        "Llama, Mistral, Qwen, Gemma, OPT, BART, Phi, BLOOM, Falcon and T5."
    )
