"""Attention maps of students beside their teacher's: what does a student of a head look at?

Every head of a layer of a real encoder is a teacher. Students average the head's own values: by
softmax attention (trained, and left undertrained), by simplex attention, and by certified static
mixing, whose map is read three ways. Trained students have several seeds; certified mixing has
nothing random in it. Finished jobs are files in a folder, so that a run that was interrupted goes
on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
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
from .tables import standard_error

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
    example: str = "After the storm the old keeper wrote a long letter to her sister."  # shown
    seed: int = 0  # of the split, and of the first training
    seeds: int = 3  # trainings of every trained student, on one split


@dataclass(frozen=True)
class Job:
    """A student, and which of its trainings; the certified one is fitted once."""

    student: str
    training: int = 0

    def __str__(self) -> str:
        return "convex" if self.student == "convex" else f"{self.student}-{self.training}"


def jobs_of(settings: Settings) -> list[Job]:
    """Convex first: it says which heads are shown, and others keep the maps of these alone.

    >>> [str(job) for job in jobs_of(Settings(seeds=1))]
    ['convex', 'softmax-0', 'undertrained-0', 'simplex-0']
    """
    trained = ("softmax", "undertrained", "simplex")
    return [Job("convex"), *(Job(name, k) for name in trained for k in range(settings.seeds))]


def run(folder: Path, settings: Settings, report: Report | None = None) -> Record:
    """Teach what is not taught yet, and gather the results."""
    folder.mkdir(parents=True, exist_ok=True)
    tell = report or (lambda done, what: None)
    pairs = sentence_pairs()
    lecture: _Lecture | None = None
    found: dict[str, list[Record]] = {}
    for number, job in enumerate(jobs_of(settings)):
        tell(number, str(job))
        file = folder / f"{job}.json"
        heads = found["convex"][0]["heads"] if "convex" in found else None
        done = json.loads(file.read_text()) if file.exists() else None
        if done is None or not _is_of(done, settings, pairs.name, heads):
            lecture = lecture or _Lecture(folder, settings, pairs)
            done = {"settings": _of_a_job(settings), "text": pairs.name}
            done |= lecture.teach(job, heads)
            replace(file, json.dumps(done) + "\n")
        found.setdefault(job.student, []).append(done)
    results = _gather(found, settings)
    replace(folder / "results.json", json.dumps(results) + "\n")
    return results


def _is_of(job: Record, settings: Settings, text: str, heads: list[int] | None) -> bool:
    """Whether a finished job has these settings, learnt from this text, and shows these heads."""
    same = job["settings"] == _of_a_job(settings) and job["text"] == text
    return bool(same and heads in (None, job["heads"]))


def _of_a_job(settings: Settings) -> Record:
    """What a finished job must agree with: how many trainings there are does not matter."""
    return {name: value for name, value in asdict(settings).items() if name != "seeds"}


def _gather(found: dict[str, list[Record]], settings: Settings) -> Record:
    """The results of all jobs: lists are over the trainings of a student."""
    convex = found["convex"][0]
    return {
        "command": "convexformer reproduce maps",
        **stamp(),
        "settings": asdict(settings),
        "text": convex["text"],
        "n_texts": convex["n_texts"],
        "shares": {student: [job["shares"] for job in jobs] for student, jobs in found.items()},
        "relative_gap": convex["relative_gap"],
        "likeness": {
            name: [job["likeness"][name] for job in found[student]]
            for name, student in MAPS.items()
        },
        "uniform": convex["likeness"]["uniform"],
        "examples": _examples(found),
    }


def _examples(found: dict[str, list[Record]]) -> list[Record]:
    """The most and the least static head on a short sentence, in the eyes of first trainings."""
    first = {student: jobs[0]["example"] for student, jobs in found.items()}
    of = {"teacher": "convex"} | MAPS
    return [
        {
            "head": head,
            "tokens": first["convex"]["tokens"],
            "maps": {name: first[student]["maps"][name][row] for name, student in of.items()},
        }
        for row, head in enumerate(found["convex"][0]["heads"])
    ]


@dataclass(frozen=True)
class _Taught:
    """A student: shares of heads on texts to test, its maps of any text, and its proof, if any."""

    shares: list[float]
    maps_of: Callable[[Any], Maps]
    relative_gap: float | None = None


class _Lecture:
    """What all students share: texts, the split, and what teachers do on texts to test.

    The sentence that is shown is nobody's: texts to learn from may not be ours to show.
    """

    def __init__(self, folder: Path, settings: Settings, pairs: SentencePairs) -> None:
        self.settings = settings
        sentences = list(dict.fromkeys(first for first, _ in pairs.train))[: settings.sentences]
        sentences = [text for text in sentences if text != settings.example]
        place = folder / "activations"
        self.found = self._extract(sentences, place / "texts")
        self.example = self._extract([settings.example], place / "example")[0]
        self.texts = _Texts(self.found, settings.window, _split(self.found, 10**9, settings.seed))
        self.test = [int(i) for i in self.texts.parts[2][: settings.compared]]

    def _extract(self, sentences: list[str], place: Path) -> Activations:
        model, layer = self.settings.model, self.settings.layer
        return extract(model, sentences, layer, place, keep=KEEP, truncate=True, overwrite=True)

    def teach(self, job: Job, heads: list[int] | None) -> Record:
        """Shares and likeness of all heads; of the first training also maps of `heads`."""
        taught = self._convex() if job.student == "convex" else self._trained(job)
        if heads is None:  # the most and the least static
            heads = [int(np.argmax(taught.shares)), int(np.argmin(taught.shares))]
        return {
            "n_texts": [len(part) for part in self.texts.parts],
            "shares": taught.shares,
            "relative_gap": taught.relative_gap,
            "heads": heads,
            "likeness": self._compared(taught.maps_of),
            "example": None if job.training else self._shown(taught.maps_of, heads),
        }

    # Students -----------------------------------------------------------------------------------

    def _trained(self, job: Job) -> _Taught:
        settings, seed = self.settings, self.settings.seed + job.training
        learn, _, test = self._lessons()
        _, n, heads, e = learn.V.shape
        longest = max(n, test.V.shape[1], len(self.example.tokens))
        torch.manual_seed(seed)
        student: Student
        if job.student == "simplex":
            student, rate = SimplexStudent(heads, e, longest), settings.simplex_rate
        else:
            student = SoftmaxStudent(heads, e, learn.X.shape[2])
            poor = job.student == "undertrained"
            rate = settings.undertrained_rate if poor else settings.softmax_rate
        train(student, learn, Training(rate, settings.steps, seed))
        name = next(name for name, owner in MAPS.items() if owner == job.student)
        real = learn.mask[:, :, None, None]
        means = (learn.Y * real).sum(dim=(0, 1)) / real.sum()

        def maps_of(text: Any) -> Maps:
            X = self._scores(text.inputs[None])
            with torch.no_grad():
                A = student.attention(X, torch.ones(X.shape[:2], dtype=torch.bool))
            return {name: A[0].double().numpy()}

        return _Taught(shares(student, test, means).tolist(), maps_of)

    def _lessons(self) -> list[Lesson]:
        """Texts to train, to validate and to test."""
        axes = np.stack([_axes(W) for W in self.found.projection[0]])  # (heads, e, e)
        lessons, size = [], None
        for part, (V, Y, mask, _) in zip(self.texts.parts, self.texts.arrays, strict=True):
            V, Y = (np.einsum("inhe,hef->inhf", A, axes, optimize=True) for A in (V, Y))
            if size is None:
                size = np.sqrt(np.var(Y[mask], axis=0).sum(axis=1))[:, None]  # (heads, 1)
            scaled = (torch.tensor(A / size, dtype=torch.float32) for A in (V, Y))
            X = self._scores(self._inputs(part))
            lessons.append(Lesson(X, next(scaled), next(scaled), torch.tensor(mask)))
        return lessons

    def _scores(self, X: NDArray[np.floating]) -> torch.Tensor:
        """What scores are made of: principal components of the inputs, on one scale."""
        mean, directions = self._components
        return torch.tensor((X - mean) @ directions, dtype=torch.float32)

    @cached_property
    def _components(self) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Mean ``(d,)`` and scaled directions ``(d, components)`` of the texts to train on."""
        real = self._inputs(self.texts.parts[0])[self.texts.arrays[0][2]]
        mean = real.mean(axis=0)
        _, _, directions = np.linalg.svd(real - mean, full_matrices=False)
        directions = directions[: self.settings.components].T
        return mean, directions / np.std((real - mean) @ directions)

    def _inputs(self, part: NDArray[np.intp]) -> NDArray[np.floating]:
        X = np.zeros((len(part), int(self.found.lengths[part].max()), self.found.dim), np.float32)
        for j, i in enumerate(part):
            inputs = self.found[int(i)].inputs
            X[j, : self.found.lengths[i]] = inputs
        return X

    def _convex(self) -> _Taught:
        fits, explained = [], []
        for head in range(self.found.n_heads):
            learn, validation, test = self.texts.of_head(head)
            fit = fit_static(learn, validation, BETAS, 1e-6)
            baseline = test.errors(learn.Y.mean(axis=0))
            explained.append(share(test.errors(test.predict(fit.Z, fit.b)), baseline)[0])
            fits.append(fit)
        axes = [_axes(W) for W in self.found.projection[0]]

        def maps_of(text: Any) -> Maps:
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
        return _Taught(explained, maps_of, gap)

    # Comparison ---------------------------------------------------------------------------------

    def _compared(self, maps_of: Callable[[Any], Maps]) -> Record:
        """Likeness to the teacher of every map, by head."""
        rows: dict[str, list[list[Record]]] = {}
        for i in self.test:
            text = self.found[i]
            for name, maps in maps_of(text).items():
                rows.setdefault(name, []).append(list(_likenesses(text, maps)))
        return {name: _mean(texts) for name, texts in rows.items()}

    def _shown(self, maps_of: Callable[[Any], Maps], heads: list[int]) -> Record:
        """The maps of some heads of the sentence that is shown."""
        teacher: Any = self.example.maps
        found = {"teacher": teacher.astype(float)} | maps_of(self.example)
        maps = {name: A[heads].round(4).tolist() for name, A in found.items() if name != "uniform"}
        return {"tokens": self.example.tokens, "maps": maps}


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
    """A row per map: share that its student explains, and likeness to the teacher.

    Numbers are means over heads and trainings; ``errors`` are standard errors over trainings, None
    where there is one.
    """
    rows = []
    for name, found in (results["likeness"] | {"uniform": [results["uniform"]]}).items():
        shares = results["shares"][MAPS[name]] if name in MAPS else None
        values = {} if shares is None else {"share": _over_heads(shares)}
        for tokens, prefix in (("all", ""), ("words", "words_")):
            for measure in found[0][tokens]:
                by_head = [training[tokens][measure] for training in found]
                values[prefix + measure] = _over_heads(by_head)
        means = {key: float(np.mean(numbers)) for key, numbers in values.items()}
        errors = {key: standard_error(numbers) for key, numbers in values.items()}
        row = {"map": name, "trainings": len(found), "share": None, **means}
        rows.append(row | {"errors": errors})
    return rows


def _over_heads(trainings: list[list[float]]) -> list[float]:
    return [float(np.mean(heads)) for heads in trainings]
