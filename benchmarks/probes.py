"""How static are the heads of a real encoder? All layers of MiniLM, on unseen sentences.

``python -m benchmarks.probes`` (`make probes`) extracts and probes layer by layer into
``benchmarks/probes``, skips what is there, and writes the tables of ``docs/probes.md`` and its
figures anew from these files and from those of `make maps`. With ``--mpnet`` (`make probes-mpnet`)
it probes the sixth layer of all-mpnet-base-v2, an encoder of the paper's size. Sentences are those
of MRPC where ``CONVEXFORMER_MRPC`` names its folder, else prose of this project.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from pathlib import Path

import matplotlib
import numpy as np
from benchmarks import encoder

from convexformer.activations import extract
from convexformer.cli._console import to_json
from convexformer.experiments import maps_figure, maps_page
from convexformer.experiments.records import replace, stamp, table
from convexformer.plotting import ProbeDisplay
from convexformer.probes import HeadProbe, LayerProbe, probe

HERE = Path(__file__).parent
RESULTS = HERE / "probes"
PAGE = HERE.parent / "docs" / "probes.md"
FIGURES = PAGE.parent / "figures"
MAPS = HERE / "maps" / "results.json"
LAYERS, SENTENCES = 6, 1200
SHOWN = 2  # the layer of the figure
MPNET, MPNET_LAYER = "models/all-mpnet-base-v2", 5  # counted from 0: the sixth, as in the paper
COMMAND = "python -m benchmarks.probes"


def main() -> None:
    RESULTS.mkdir(exist_ok=True)
    jobs = {f"minilm-layer-{layer}": ("minilm", layer) for layer in range(LAYERS)}
    if "--mpnet" in sys.argv[1:]:
        jobs = {f"mpnet-layer-{MPNET_LAYER}": (MPNET, MPNET_LAYER)}
    for name, (model, layer) in jobs.items():
        file = RESULTS / f"{name}.json"
        if not file.exists():
            replace(file, to_json(run(model, layer)) + "\n")
        print(LayerProbe.from_dict(json.loads(file.read_text())), flush=True)
    publish()


def run(model: str, layer: int) -> dict:
    """Extract and probe a layer."""
    sentences = list(dict.fromkeys(first for first, _ in encoder.pairs()))[:SENTENCES]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        keep = ("values", "heads", "maps")
        found = extract(model, sentences, layer, folder, keep=keep, truncate=True)
        extracted = time.perf_counter() - start
        result = probe(found)
        texts = found.recipe.texts
    return {
        "command": COMMAND + " --mpnet" * (model == MPNET),
        "text": encoder.text(),
        "texts_sha256": texts,
        "extraction_seconds": extracted,
        **stamp(),
        **result.to_dict(),
    }


def publish() -> None:
    """The tables and findings of the page, and its figures, from the files."""
    matplotlib.use("Agg")
    FIGURES.mkdir(exist_ok=True)
    write_page()
    ProbeDisplay.from_probe(read("minilm")[1][SHOWN]).figure_.savefig(
        FIGURES / "probe.png", dpi=110
    )
    for result in read("mpnet")[1]:
        ProbeDisplay.from_probe(result).figure_.savefig(FIGURES / "probes-mpnet.png", dpi=110)
    if MAPS.exists():
        results = json.loads(MAPS.read_text())
        maps_figure.draw(results).savefig(FIGURES / "maps.png", dpi=110)


def write_page() -> None:
    """All of the page that has numbers of a run."""
    for name, text in sections().items():
        _write(name, text)


def sections() -> dict[str, str]:
    """The generated parts of the page, by the name of their marks."""
    made = {}
    for model in ("minilm", "mpnet"):
        records, probes = read(model)
        if probes:
            told = "\n".join(f"- {sentence}" for sentence in findings(probes, records))
            made[model] = "\n\n".join([_table(records, probes), told])
            if model == "minilm":
                made["found"] = _found(probes)
    if MAPS.exists():
        made["maps"] = maps_page.render(json.loads(MAPS.read_text()))
    return made


def read(model: str) -> tuple[list[dict], list[LayerProbe]]:
    """The records of a model's layers, and what they hold."""
    records = [json.loads(file.read_text()) for file in sorted(RESULTS.glob(f"{model}-*.json"))]
    return records, [LayerProbe.from_dict(record) for record in records]


def _table(records: list[dict], probes: list[LayerProbe]) -> str:
    header = ["layer", "static share, by head", "mean", "by weights", "own", "agree", "gap"]
    texts = ", ".join(dict.fromkeys(record["text"] for record in records))
    size, test = sum(probes[0].n_texts), probes[0].n_texts[2]
    words = f"Sentences: {texts}; {size}, of which {test} to test."
    return words + "\n\n" + table(header, [_row(result) for result in probes])


def _found(probes: list[LayerProbe]) -> str:
    """What the page begins with."""
    heads = heads_of(probes)
    share, weights, _ = _means(heads)
    low, high = (end(head.share for head in heads) for end in (min, max))
    return (
        "**In a small sentence encoder (all-MiniLM-L6-v2) static mixing explains "
        f"{share:.0%} of the variance of what heads write, on unseen text and averaged over "
        f"{len(heads)} heads; fixed attention weights alone explain {weights:.0%}.** Heads differ: "
        f"shares reach from {low:.2f} to {high:.2f}. The fits behind them are certified "
        f"(relative gap at most {max(result.worst_gap for result in probes):.0e})."
    )


def heads_of(probes: list[LayerProbe]) -> list[HeadProbe]:
    """Heads of all layers."""
    return [head for result in probes for head in result.heads]


def findings(probes: list[LayerProbe], records: list[dict]) -> list[str]:
    """What the results of a model's layers show, in sentences."""
    heads = heads_of(probes)
    share, weights, own = _means(heads)
    far = max(heads, key=lambda head: head.attention_share - head.model_attention_share)
    layer = next(result.layer for result in probes if far in result.heads)
    told = [
        f"Means over {len(heads)} heads: static mixing explains {share:.2f}, fixed weights alone "
        f"{weights:.2f}, the model's own mean attention, frozen, {own:.2f}. The last two differ "
        f"most in head {far.head} of layer {layer}: {far.attention_share:.2f} against "
        f"{far.model_attention_share:.2f}.",
        _agreement(heads),
    ]
    for key, what in (("extraction_seconds", "Extraction"), ("seconds", "The heads of a layer")):
        low, high = (f"{end([record[key] for record in records]):.0f}" for end in (min, max))
        told.append(f"{what} took {low if low == high else f'{low} to {high}'} s.")
    return told


def _agreement(heads: list[HeadProbe]) -> str:
    """Heads whose offset is the model's, and what the model attends to in the others."""
    others = [head for head in heads if head.offset != head.model_offset]
    words = "*agree*: heads whose most weighted offset is the one with most of the model's own "
    words += f"mean attention, {len(heads) - len(others)} of {len(heads)}."
    if not others:
        return words
    offsets = [sorted(_offsets(head), reverse=True) for head in others]
    lead = max(first - second for first, second, *_ in offsets)
    mean = sum(head.top[0].startswith("mean") for head in others)
    largest = max(first for first, *_ in offsets)
    return (
        f"{words} In the other {len(others)} the model's largest offset holds less than "
        f"{_above(largest, 2)} of its attention and leads the next by less than {_above(lead, 3)}; "
        f"{mean} of them read the mean most."
    )


def _above(value: float, digits: int) -> str:
    """The next larger number with so many digits."""
    return f"{(math.floor(value * 10**digits) + 1) / 10**digits:.{digits}f}"


def _offsets(head: HeadProbe) -> list[float]:
    """The model's mean attention to every offset, landmarks left out."""
    return [
        value
        for name, value in zip(head.names, head.model_attention, strict=True)
        if name.lstrip("+-").isdigit()
    ]


def _means(heads: list[HeadProbe]) -> tuple[float, float, float]:
    """Mean shares of static mixing, of fixed weights, and of the model's own mean attention."""
    shares = [(h.share, h.attention_share, h.model_attention_share) for h in heads]
    share, weights, own = np.mean(shares, axis=0)
    return float(share), float(weights), float(own)


def _write(name: str, text: str) -> None:
    """Put a text between the marks of the page that have this name."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    head, rest = PAGE.read_text().split(start)
    replace(PAGE, "\n".join([head + start, text, "", end]) + rest.split(end)[1])


def _row(result: LayerProbe) -> list[str]:
    shares = " ".join(f"{head.share:.2f}".lstrip("0") for head in result.heads)
    return [
        str(result.layer),
        shares,
        *(f"{value:.2f}" for value in _means(result.heads)),
        f"{result.agreement} of {len(result.heads)}",
        f"{result.worst_gap:.0e}",
    ]


if __name__ == "__main__":
    main()
