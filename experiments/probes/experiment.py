"""How static are the heads of a real encoder? Layers of two encoders, on unseen sentences.

A job is a layer: it is extracted, and its heads are probed. Sentences are those of MRPC where
``CONVEXFORMER_MRPC`` names its folder, else prose of this project.
"""

import json
import math
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from convexformer.activations import extract
from convexformer.cli._console import to_json
from convexformer.plotting import ProbeDisplay
from convexformer.probes import HeadProbe, LayerProbe, probe

from ..lab import KeyedJob, Ledger, OutOfTime, Record
from ..maps.experiment import draw
from ..maps.experiment import facts as facts_of_maps
from ..sentences import SentencePairs

SENTENCES = 1200
LAYERS = range(6)  # of minilm: all
MPNET, MPNET_LAYER = "models/all-mpnet-base-v2", 5  # counted from 0: the sixth, as in the paper


@dataclass(frozen=True)
class Job(KeyedJob):
    """A layer of an encoder."""

    pairs: SentencePairs = field(repr=False)
    model: str
    layer: int

    def rules(self) -> Record:
        return {"text": self.pairs.name}

    def run(self) -> Record:
        """Extract and probe; the large encoder is left for later where it is missing."""
        if self.model == MPNET and not Path(MPNET).exists():
            raise OutOfTime(f"{MPNET} is missing: run make mpnet.")
        sentences = list(dict.fromkeys(first for first, _ in self.pairs.train))[:SENTENCES]
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as place:
            keep = ("values", "heads", "maps")
            found = extract(self.model, sentences, self.layer, place, keep=keep, truncate=True)
            extracted = time.perf_counter() - start
            told = json.loads(to_json(probe(found).to_dict()))
            return told | {"texts_sha256": found.recipe["texts"], "extraction_seconds": extracted}


def run(ledger: Ledger, pairs: SentencePairs) -> Record:
    """Do what is missing."""
    small = ledger.do_each(Job(pairs, "minilm", layer) for layer in LAYERS)
    large = ledger.do_each([Job(pairs, MPNET, MPNET_LAYER)])
    return ledger.header() | {"minilm": small, "mpnet": large}


# What the page says -------------------------------------------------------------------------------

MAPS = Path(__file__).parent.parent / "maps" / "results.json"
SHOWN = 2  # the layer of the figure


def facts(results: Record) -> Record:
    """The names of the template; those of maps are the results of their own experiment."""
    maps = json.loads(MAPS.read_text())
    return maps | {
        "means": means,
        "minilm": _encoder(results["minilm"]),
        "mpnet": _encoder(results["mpnet"]),
        "maps": facts_of_maps(maps),
    }


def figures(results: Record) -> dict[str, Figure]:
    """By the names of their files."""
    shown = {"probe.png": results["minilm"][SHOWN], "probes-mpnet.png": results["mpnet"][0]}
    probes = {name: LayerProbe.from_dict(record) for name, record in shown.items()}
    drawn = {name: ProbeDisplay.from_probe(probe).figure_ for name, probe in probes.items()}
    return drawn | {"maps.png": draw(json.loads(MAPS.read_text()))}


def _encoder(records: list[Record]) -> Record:
    """What the layers of an encoder show."""
    probes = [LayerProbe.from_dict(record) for record in records]
    heads = [head for probe in probes for head in probe.heads]
    far = max(heads, key=lambda head: head.attention_share - head.model_attention_share)
    others = [head for head in heads if head.offset != head.model_offset]
    offsets = [sorted(_offsets(head), reverse=True) for head in others]
    return {
        "text": ", ".join(dict.fromkeys(record["text"] for record in records)),
        "size": sum(probes[0].n_texts),
        "test": probes[0].n_texts[2],
        "rows": probes,
        "heads": len(heads),
        "means": means(heads),
        "lowest": min(head.share for head in heads),
        "highest": max(head.share for head in heads),
        "worst_gap": max(probe.worst_gap for probe in probes),
        "far": far,
        "far_layer": next(probe.layer for probe in probes if far in probe.heads),
        "others": len(others),
        "largest": above(max(first for first, *_ in offsets), 2),
        "lead": above(max(first - second for first, second, *_ in offsets), 3),
        "read_mean": sum(head.top[0].startswith("mean") for head in others),
        "extraction": _span([record["extraction_seconds"] for record in records]),
        "probing": _span([record["seconds"] for record in records]),
    }


def means(heads: list[HeadProbe]) -> list[float]:
    """Mean shares of static mixing, of fixed weights, and of the model's own mean attention."""
    shares = [(h.share, h.attention_share, h.model_attention_share) for h in heads]
    return [float(mean) for mean in np.mean(shares, axis=0)]


def above(value: float, digits: int) -> str:
    """The next larger number with so many digits."""
    return f"{(math.floor(value * 10**digits) + 1) / 10**digits:.{digits}f}"


def _span(seconds: list[float]) -> str:
    low, high = f"{min(seconds):.0f}", f"{max(seconds):.0f}"
    return low if low == high else f"{low} to {high}"


def _offsets(head: HeadProbe) -> list[float]:
    """The model's mean attention to every offset, landmarks left out."""
    return [
        value
        for name, value in zip(head.names, head.model_attention, strict=True)
        if name.lstrip("+-").isdigit()
    ]
