"""Attention maps of students beside their teacher's: what does a student of a head look at?

Every head of a layer of a real encoder is a teacher. Students average the head's own values: by
softmax attention (trained, and left undertrained), by simplex attention, and by certified static
mixing, whose map is read three ways. Finished jobs are files in a folder, so that a run that was
interrupted goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..activations import Activations, extract
from ..datasets import SentencePairs, sentence_pairs
from ..probes._maps import contribution_map, likeness, norm_map, pair_coefficients
from ..probes._probe import BETAS, _axes, _split, _Texts
from ..probes._static import fit_static, share
from .map_students import Lesson, SimplexStudent, SoftmaxStudent, Student, Training, shares, train
from .records import Record, replace, stamp

KEEP = ("inputs", "values", "heads", "maps")
MAPS = {  # of which student
    "softmax": "softmax",
    "softmax, undertrained": "undertrained",
    "simplex": "simplex",
    "convex, static attention": "convex",
    "convex, norms": "convex",
    "convex, contributions": "convex",
}
Report = Callable[[int, str], None]
Maps = dict[str, NDArray[np.float64]]  # (heads, n, n)


@dataclass(frozen=True)
class Settings:
    """Of an experiment; `rates` are learning rates."""

    model: str = "minilm"
    layer: int = 2
    sentences: int = 1200
    components: int = 128  # of what scores are made of
    steps: int = 1000
    softmax_rate: float = 1e-2
    undertrained_rate: float = 1e-4
    simplex_rate: float = 3e-2
    window: int = 8
    compared: int = 100  # test texts
    seed: int = 0


def run(folder: Path, settings: Settings, report: Report | None = None) -> Record:
    """Teach what is not taught yet, and gather the results."""
    folder.mkdir(parents=True, exist_ok=True)
    tell = report or (lambda done, what: None)
    jobs = ("softmax", "undertrained", "simplex", "convex")
    pairs = sentence_pairs()
    lecture: _Lecture | None = None
    for number, job in enumerate(jobs):
        tell(number, job)
        file = folder / f"{job}.json"
        if file.exists() and _is_of(json.loads(file.read_text()), settings, pairs.name):
            continue
        lecture = lecture or _Lecture(folder, settings, pairs)
        replace(file, json.dumps(lecture.teach(job) | {"settings": asdict(settings)}) + "\n")
    found = {job: json.loads((folder / f"{job}.json").read_text()) for job in jobs}
    results = {
        "command": "convexformer reproduce maps",
        **stamp(),
        "settings": asdict(settings),
        "text": found["convex"]["text"],
        "n_texts": found["convex"]["n_texts"],
        "shares": {job: found[job]["shares"] for job in jobs},
        "relative_gap": found["convex"]["relative_gap"],
        "likeness": {name: found[job]["likeness"][name] for name, job in MAPS.items()},
        "uniform": found["convex"]["likeness"]["uniform"],
        "examples": _examples(found),
    }
    replace(folder / "results.json", json.dumps(results) + "\n")
    return results


def _is_of(job: Record, settings: Settings, text: str) -> bool:
    """Whether a finished job has these settings, and learnt from this text."""
    return bool(job["settings"] == asdict(settings) and job["text"] == text)


def _examples(found: dict[str, Record]) -> list[Record]:
    """The most and the least static head on a short sentence, in the eyes of all students."""
    static = found["convex"]["shares"]
    chosen = [int(np.argmax(static)), int(np.argmin(static))]
    shown = found["convex"]["example"]
    return [
        {
            "head": head,
            "tokens": shown["tokens"],
            "maps": {"teacher": shown["teacher"][head]}
            | {name: found[job]["example"]["maps"][name][head] for name, job in MAPS.items()},
        }
        for head in chosen
    ]


class _Lecture:
    """What all students share: texts, the split, and what teachers do on texts to test."""

    def __init__(self, folder: Path, settings: Settings, pairs: SentencePairs) -> None:
        self.settings = settings
        self.name = pairs.name
        sentences = list(dict.fromkeys(first for first, _ in pairs.train))[: settings.sentences]
        place = folder / "activations"
        self.found: Activations = extract(
            settings.model, sentences, settings.layer, place, keep=KEEP, truncate=True,
            overwrite=True,
        )  # fmt: skip
        self.texts = _Texts(self.found, settings.window, _split(self.found, 10**9, settings.seed))
        self.test = [int(i) for i in self.texts.parts[2][: settings.compared]]
        lengths = self.found.lengths[self.test]
        self.example = self.test[int(np.argmin(np.abs(lengths - 14)))]  # short enough to read

    def teach(self, job: str) -> Record:
        torch.manual_seed(self.settings.seed)
        results = self._convex() if job == "convex" else self._trained(job)
        return results | {
            "text": self.name,
            "n_texts": [len(part) for part in self.texts.parts],
        }

    # Students -----------------------------------------------------------------------------------

    def _trained(self, job: str) -> Record:
        settings = self.settings
        learn, _, test = self._lessons()
        _, n, heads, e = learn.V.shape
        longest = max(n, test.V.shape[1])
        student: Student
        if job == "simplex":
            student, rate = SimplexStudent(heads, e, longest), settings.simplex_rate
        else:
            student = SoftmaxStudent(heads, e, learn.X.shape[2])
            rate = settings.softmax_rate if job == "softmax" else settings.undertrained_rate
        train(student, learn, Training(rate, settings.steps, settings.seed))
        name = next(name for name, owner in MAPS.items() if owner == job)
        real = learn.mask[:, :, None, None]
        means = (learn.Y * real).sum(dim=(0, 1)) / real.sum()

        def maps_of(i: int) -> Maps:
            row = torch.tensor([self.texts.parts[2].tolist().index(i)])
            with torch.no_grad():
                return {name: student.attention(test.batch(row))[0].double().numpy()}

        return {"shares": shares(student, test, means).tolist()} | self._compared(maps_of)

    def _lessons(self) -> list[Lesson]:
        """Texts to train, to validate and to test."""
        axes = np.stack([_axes(W) for W in self.found.projection[0]])  # (heads, e, e)
        inputs = [self._inputs(part) for part in self.texts.parts]
        real = inputs[0][self.texts.arrays[0][2]]
        mean = real.mean(axis=0)
        _, _, directions = np.linalg.svd(real - mean, full_matrices=False)
        directions = directions[: self.settings.components].T  # (d, components)
        scale = np.std((real - mean) @ directions)
        lessons, size = [], None
        for X, (V, Y, mask, _) in zip(inputs, self.texts.arrays, strict=True):
            V, Y = (np.einsum("inhe,hef->inhf", part, axes, optimize=True) for part in (V, Y))
            if size is None:
                size = np.sqrt(np.var(Y[mask], axis=0).sum(axis=1))[:, None]  # (heads, 1)
            scores = torch.tensor((X - mean) @ directions / scale, dtype=torch.float32)
            scaled = (torch.tensor(part / size, dtype=torch.float32) for part in (V, Y))
            lessons.append(Lesson(scores, next(scaled), next(scaled), torch.tensor(mask)))
        return lessons

    def _inputs(self, part: NDArray[np.intp]) -> NDArray[np.floating]:
        X = np.zeros((len(part), int(self.found.lengths[part].max()), self.found.dim), np.float32)
        for j, i in enumerate(part):
            inputs = self.found[int(i)].inputs
            X[j, : self.found.lengths[i]] = inputs
        return X

    def _convex(self) -> Record:
        fits, explained = [], []
        for head in range(self.found.n_heads):
            learn, validation, test = self.texts.of_head(head)
            fit = fit_static(learn, validation, BETAS, 1e-6)
            baseline = test.errors(learn.Y.mean(axis=0))
            explained.append(share(test.errors(test.predict(fit.Z, fit.b)), baseline)[0])
            fits.append(fit)
        axes = [_axes(W) for W in self.found.projection[0]]

        def maps_of(i: int) -> Maps:
            text = self.found[i]
            V: Any = text.values
            flags = np.zeros(len(text.tokens), dtype=bool)  # single sentences have no separators
            kinds: dict[str, list] = {name: [] for name in (*list(MAPS)[3:], "uniform")}
            for head, fit in enumerate(fits):
                C = pair_coefficients(fit.Z, self.texts.places, flags)
                weights = pair_coefficients(fit.attention, self.texts.places, flags)
                added = contribution_map(C, V[:, head] @ axes[head])
                uniform = np.ones_like(weights)
                for name, A in zip(kinds, (weights, norm_map(C), added, uniform), strict=True):
                    kinds[name].append(A)
            return {name: np.stack(maps) for name, maps in kinds.items()}

        gap = max(float(fit.certificate.relative_gap) for fit in fits)
        return {"shares": explained, "relative_gap": gap} | self._compared(maps_of)

    # Comparison ---------------------------------------------------------------------------------

    def _compared(self, maps_of: Callable[[int], Maps]) -> Record:
        """Likeness to the teacher of every map, by head; and the maps of one sentence."""
        rows: dict[str, list[list[Record]]] = {}
        for i in self.test:
            text = self.found[i]
            for name, maps in maps_of(i).items():
                rows.setdefault(name, []).append(list(_likenesses(text, maps)))
        text = self.found[self.example]
        shown = {name: maps.round(4).tolist() for name, maps in maps_of(self.example).items()}
        teacher: Any = text.maps
        example = {"tokens": text.tokens, "teacher": teacher.astype(float).round(4).tolist()}
        return {
            "likeness": {name: _mean(texts) for name, texts in rows.items()},
            "example": example | {"maps": shown},
        }


def _likenesses(text: Any, maps: NDArray[np.float64]) -> Iterator[Record]:
    """Of every head: with special tokens, and without."""
    for own, A in zip(text.maps, maps, strict=True):
        yield {
            "all": asdict(likeness(own, A)),
            "words": asdict(likeness(own, A, keep=text.segments >= 0)),
        }


def _mean(texts: list[list[Record]]) -> Record:
    """Mean over texts, by head."""
    return {
        tokens: {
            measure: np.mean(
                [[head[tokens][measure] for head in heads] for heads in texts], axis=0
            ).tolist()
            for measure in texts[0][0][tokens]
        }
        for tokens in ("all", "words")
    }


def summary(results: Record) -> list[Record]:
    """A row per map: share explained by its student, likeness to the teacher, means over heads."""
    rows = []
    for name, found in (results["likeness"] | {"uniform": results["uniform"]}).items():
        job = MAPS.get(name)
        explained = None if job is None else float(np.mean(results["shares"][job]))
        means = {measure: float(np.mean(by_head)) for measure, by_head in found["all"].items()}
        words = {f"words_{key}": float(np.mean(value)) for key, value in found["words"].items()}
        rows.append({"map": name, "share": explained, **means, **words})
    return rows
