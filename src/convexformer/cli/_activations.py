"""``convexformer extract`` and ``probe``: what a layer of a transformer does, and what it mixes."""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ._command import Answer, command
from ._console import InputError, plain_table, progress
from ._models import bar
from ._outputs import FIGURES, check_folder, check_output, save

if TYPE_CHECKING:
    from convexformer.probes import HeadProbe, LayerProbe

KEEP = ("values", "heads", "maps")
MOST_PLACES = 3  # that are told of a head
LEGEND = (
    "\nshare: of the variance of what a head writes, explained on unseen text by certified static "
    "mixing; by weights: by one weight per place alone; own: by the model's own mean attention, "
    "frozen. reads: the places that contribute most, and the deviation of what they contribute "
    "over that of what the head writes."
)


@command
def extract(
    model: str,
    texts: Path,
    *,
    layer: int,
    out: Path,
    keep: list[str] | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    batch_size: int = 32,
    max_length: int | None = None,
    truncate: bool = False,
    force: bool = False,
) -> Answer:
    """Write to disk what a layer's self-attention reads, what its heads write and attend to.

    After an interruption the command begins anew.

    Parameters
    ----------
    model
        minilm (make encoder installs it), a folder, or a name on the Hugging Face hub.
    out : DIR
        Folder for the files.
    keep : KIND; default all
        Keep only inputs, values, heads, attention, output or maps. Repeatable.
    dtype
        Precision on disk.
    batch_size : at least 1
        Texts per batch and per file.
    """
    from convexformer.activations import KINDS, read_texts

    read = read_texts(texts)
    check_folder(out)
    start = time.perf_counter()
    options: dict[str, Any] = {"keep": keep or KINDS, "dtype": dtype, "batch_size": batch_size}
    options |= {"max_length": max_length, "truncate": truncate, "overwrite": force}
    found = run_extraction(model, read, layer, out, **options)
    size = sum(file.stat().st_size for file in out.iterdir())
    result = {"folder": out, "bytes": size, "n_tokens": int(found.lengths.sum())}
    result |= found.recipe | {"seconds": time.perf_counter() - start}
    of = "Layer {layer} of {n_layers} of {model}: {n_texts} texts, {n_tokens} tokens"
    return result, [
        of.format(**result) + f", {found.n_heads} heads",
        f"Kept {', '.join(found.keep)}: {size / 1e6:.1f} MB after {result['seconds']:.1f} s.",
        f"In {out}",
    ]


def run_extraction(model: str, texts: Any, layer: int, folder: Path, **options: Any) -> Any:
    """Extract with a bar on stderr, beside which transformers has no bars and no advice."""
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    os.environ.update(quiet | os.environ)
    from convexformer.activations import extract

    try:
        with progress("texts") as update:
            options["report"] = lambda done, total: update(completed=done, total=total)
            return extract(model, texts, layer, folder, **options)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the extraction is not complete, and begins anew") from None


@command
def probe(
    model: str,
    texts: Path | None = None,
    *,
    layer: int | None = None,
    out: Path | None = None,
    window: int = 8,
    max_texts: int = 2000,
    seed: int = 0,
    max_length: int | None = None,
    truncate: bool = False,
    tol: float = 1e-6,
    figure: Path | None = None,
    force: bool = False,
) -> Answer:
    """Say how much of what every head of a layer writes is static mixing, and where it looks.

    Static: the same at every target, whatever the tokens say. Mixing is fitted to its certified
    optimum, and tested on texts that the fit has not seen.

    Parameters
    ----------
    model
        As for extract; or a folder that extract wrote, or a file that --json made.
    out : DIR
        Keep the activations here, to probe again.
    window : at least 1
        Offsets from -WINDOW to WINDOW.
    max_texts : at least 20
        Most texts to use.
    seed : at least 0
        Draws which texts train, choose and test.
    """
    if figure is not None:
        check_output(figure, force, [Path(model), texts or Path(model)], FIGURES)
    if not tol > 0:
        raise InputError(f"--tol must be positive, got {tol:g}.")
    settings = {"window": window, "max_texts": max_texts, "seed": seed, "tol": tol}
    drawn = model.endswith(".json")
    if drawn or (Path(model) / "recipe.json").is_file():
        if texts is not None or layer is not None:
            raise InputError(f"{model} holds what was extracted: leave TEXTS and --layer out.")
        result = _read(Path(model)) if drawn else _run(Path(model), settings)
    elif texts is None or layer is None:
        raise InputError(f"to probe the model {model}, give TEXTS and --layer as well.")
    else:
        read = _texts(texts, max_texts, seed)
        options: dict[str, Any] = {"keep": KEEP, "max_length": max_length, "truncate": truncate}
        with tempfile.TemporaryDirectory() as passing:
            folder = out or Path(passing)
            check_folder(folder)
            run_extraction(model, read, layer, folder, overwrite=force, **options)
            result = _run(folder, settings)
    shown = _shown(result)
    if figure is not None:
        from convexformer.plotting import ProbeDisplay

        save(ProbeDisplay.from_probe(result).figure_, figure)
        shown += [f"Figure: {figure}"]
    return result.to_dict() | {"figure": figure}, shown


def _read(file: Path) -> LayerProbe:
    from convexformer.probes import LayerProbe

    from ._data import reading

    with reading(file, "It is no result of probe --json."):
        return LayerProbe.from_dict(json.loads(file.read_text()))


def _texts(file: Path, most: int, seed: int) -> list[Any]:
    """Different texts of the file; of too many, some are drawn."""
    from convexformer.activations import read_texts
    from convexformer.probes import check_different

    texts = list(dict.fromkeys(read_texts(file)))
    check_different(len(texts))  # before the model is loaded
    return texts if len(texts) <= most else random.Random(seed).sample(texts, most)


def _run(folder: Path, settings: dict[str, Any]) -> LayerProbe:
    from convexformer.probes import probe

    with progress("heads") as update:
        return probe(folder, report=lambda n, total: update(completed=n, total=total), **settings)


def _shown(result: LayerProbe) -> list[RenderableType]:
    trained, chosen, tested = result.n_texts
    ways, targets = "back" if result.causal else "both ways", result.n_targets[2]
    head = ("Certified optimum for every head", "bold green")
    if not result.worst_gap <= result.tol:
        head = (f"Not every head reached the gap of {result.tol:g}", "bold yellow")
    return [
        f"Layer {result.layer} of {result.n_layers} of {result.model}, looking {ways}: trained on "
        f"{trained} texts, chosen on {chosen}, tested on {tested} ({targets} targets)\n",
        _table(result.heads),
        Text(LEGEND, "dim"),
        Text.assemble(
            head,
            f": relative duality gap at most {result.worst_gap:.1e}. The offset that mixing weighs "
            "most is that of the model's own mean attention in "
            f"{result.agreement} of {len(result.varying)} heads.",
        ),
    ]


def _table(heads: list[HeadProbe]) -> Table:
    numbers = ("head", "share", "by weights", "own")
    table = plain_table("head", "share", "", "by weights", "own", "reads", right=numbers)
    for head in heads:
        if head.constant:
            table.add_row(str(head.head), "", "", "", "", Text("writes the same everywhere", "dim"))
            continue
        strengths = dict(zip(head.names, head.strengths, strict=True))
        places = [f"{name} {strengths[name]:.2f}" for name in head.top[:MOST_PLACES]]
        table.add_row(
            str(head.head),
            Text.assemble((f"{head.share:.2f}", "bold"), (f" ±{head.share_error:.2f}", "dim")),
            bar(head.share),
            f"{head.attention_share:.2f}",
            f"{head.model_attention_share:.2f}",
            "   ".join(places),
        )
    return table
