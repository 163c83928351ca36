"""How static are the heads of a real encoder? All layers of MiniLM, on unseen sentences.

``python -m benchmarks.probes`` (`make probes`) extracts and probes layer by layer into
``benchmarks/probes``, skips what is there, and writes the tables of ``docs/probes.md`` and its
figures anew from these files and from those of `make maps`. With ``--mpnet`` (`make probes-mpnet`)
it probes the sixth layer of all-mpnet-base-v2, an encoder of the paper's size. Sentences are those
of MRPC where ``CONVEXFORMER_MRPC`` names its folder, else prose of this project.
"""

from __future__ import annotations

import json
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
from convexformer.probes import LayerProbe, probe

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
    """The tables of the page, and its figures, from the files."""
    matplotlib.use("Agg")
    FIGURES.mkdir(exist_ok=True)
    probes = _write_probes("minilm")
    ProbeDisplay.from_probe(probes[SHOWN]).figure_.savefig(FIGURES / "probe.png", dpi=110)
    for result in _write_probes("mpnet"):
        ProbeDisplay.from_probe(result).figure_.savefig(FIGURES / "probes-mpnet.png", dpi=110)
    if MAPS.exists():
        results = json.loads(MAPS.read_text())
        _write("maps", maps_page.render(results))
        maps_figure.draw(results).savefig(FIGURES / "maps.png", dpi=110)


def _write_probes(model: str) -> list[LayerProbe]:
    """The table of a model's layers."""
    records = [json.loads(file.read_text()) for file in sorted(RESULTS.glob(f"{model}-*.json"))]
    probes = [LayerProbe.from_dict(record) for record in records]
    if probes:
        header = ["layer", "static share, by head", "mean", "by weights", "own", "agree", "gap"]
        texts = ", ".join(dict.fromkeys(record["text"] for record in records))
        size, test = sum(probes[0].n_texts), probes[0].n_texts[2]
        words = f"Sentences: {texts}; {size}, of which {test} to test."
        _write(model, words + "\n\n" + table(header, [_row(result) for result in probes]))
    return probes


def _write(name: str, text: str) -> None:
    """Put a text between the marks of the page that have this name."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    head, rest = PAGE.read_text().split(start)
    replace(PAGE, "\n".join([head + start, text, "", end]) + rest.split(end)[1])


def _row(result: LayerProbe) -> list[str]:
    heads = result.heads
    means = (
        np.mean([getattr(head, name) for head in heads])
        for name in ("share", "attention_share", "model_attention_share")
    )
    mean, weights, own = (f"{value:.2f}" for value in means)
    shares = " ".join(f"{head.share:.2f}".lstrip("0") for head in heads)
    return [
        str(result.layer),
        shares,
        mean,
        weights,
        own,
        f"{result.agreement} of {len(heads)}",
        f"{result.worst_gap:.0e}",
    ]


if __name__ == "__main__":
    main()
