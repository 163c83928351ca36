"""What checkpoints are made of: whole files, plain numbers, and the state of every generator."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._files import write_whole


def plain(state: Any) -> Any:
    """`state` with Python's numbers in place of NumPy's, which a safe checkpoint may not hold."""
    if isinstance(state, dict):
        return {name: plain(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(plain(value) for value in state)
    return state.item() if isinstance(state, np.generic) else state


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write `state` whole or not at all."""
    content = io.BytesIO()
    torch.save(plain(state), content)
    write_whole(path, content.getvalue())


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `path` holds, on the CPU wherever it was trained; its reader puts it where it belongs.

    Checkpoints are never left half written; one that cannot be read was damaged by something else.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        state["setting"]
    except Exception as error:  # as many kinds as there are ways to damage a file
        raise ValueError(
            f"{path} is no checkpoint, or a damaged one. Remove it to train from the beginning."
        ) from error
    return state


def random_state() -> dict[str, Any]:
    """The state of every global generator that a step may draw from, in plain types."""
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all(),
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest),
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Put the generators back to what :func:`random_state` gave."""
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state_all(state["cuda"])
    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
