"""Attention maps of students beside their teacher's: what does a student of a head look at?

Every head of a layer of a real encoder is a teacher. Students average the head's own values: by
softmax attention (trained, and left undertrained), by simplex attention, and by certified static
mixing, whose map is read three ways. Trained students have several seeds; certified mixing has
nothing random in it.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from convexformer.activations import Activations
from convexformer.plotting._style import MUTED, bare, styled
from convexformer.probes._probe import BETAS, _axes, _split, _Texts
from convexformer.probes._static import fit_static, share

from ..lab import KeyedJob, Ledger, Record, plus_minus, standard_error
from ..sentences import SentencePairs, read_states
from ..teacher.data import principal_axes
from .likeness import Likeness, contribution_map, likeness, norm_map, pair_coefficients
from .students import Lesson, SimplexStudent, SoftmaxStudent, shares, train

KEEP = ("inputs", "values", "heads", "maps")
MAPS = {  # of which student
    "softmax": "softmax",
    "softmax, undertrained": "undertrained",
    "simplex": "simplex",
    "convex, static attention": "convex",
    "convex, norms": "convex",
    "convex, contributions": "convex",
}
READINGS = [name for name, student in MAPS.items() if student == "convex"]
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
class _Taught:
    """A student: shares of heads on texts to test, its maps of any text, and its proof, if any."""

    shares: list[float]
    maps_of: Callable[[Any], Maps]
    relative_gap: float | None = None


class Lecture:
    """What all students share: texts, the split, and what teachers do on texts to test.

    Extracted when a job needs it. The sentence that is shown is nobody's: texts to learn from may
    not be ours to show.
    """

    def __init__(self, folder: Path, settings: Settings, pairs: SentencePairs) -> None:
        self.folder, self.settings, self.text = folder, settings, pairs.name
        sentences = list(dict.fromkeys(first for first, _ in pairs.train))[: settings.sentences]
        self.sentences = [text for text in sentences if text != settings.example]

    @cached_property
    def found(self) -> Activations:
        """What the layer reads and writes on the texts."""
        return self._extract(self.sentences, self.folder / "texts")

    @cached_property
    def example(self) -> Any:
        """The same on the sentence that is shown."""
        return self._extract([self.settings.example], self.folder / "example")[0]

    @cached_property
    def texts(self) -> _Texts:
        """Texts in three parts."""
        split = _split(self.found, 10**9, self.settings.seed)
        return _Texts(self.found, self.settings.window, split)

    def _extract(self, sentences: list[str], place: Path) -> Activations:
        return read_states(self.settings.model, sentences, self.settings.layer, place, KEEP)

    # Students -----------------------------------------------------------------------------------

    def trained(self, name: str, training: int) -> _Taught:
        """A student by gradient steps."""
        settings, seed = self.settings, self.settings.seed + training
        learn, test = self._lessons()
        _, n, heads, e = learn.V.shape
        longest = max(n, test.V.shape[1], len(self.example.tokens))
        torch.manual_seed(seed)
        simplex = name == "simplex"
        width = longest if simplex else learn.X.shape[2]
        student = (SimplexStudent if simplex else SoftmaxStudent)(heads, e, width)
        train(student, learn, getattr(settings, f"{name}_rate"), settings.steps, seed)
        shown_as = next(key for key, owner in MAPS.items() if owner == name)
        real = learn.mask[:, :, None, None]
        means = (learn.Y * real).sum(dim=(0, 1)) / real.sum()

        def maps_of(text: Any) -> Maps:
            X = self._scores(text.inputs[None])
            with torch.no_grad():
                A = student.attention(X, torch.ones(X.shape[:2], dtype=torch.bool))
            return {shown_as: A[0].double().numpy()}

        return _Taught(shares(student, test, means).tolist(), maps_of)

    def _lessons(self) -> list[Lesson]:
        """Texts to train and to test."""
        axes = np.stack([_axes(W) for W in self.found.projection[0]])  # (heads, e, e)
        lessons, size = [], None
        for part in (0, 2):
            V, Y, mask, _ = self.texts.arrays[part]
            V, Y = (np.einsum("inhe,hef->inhf", A, axes, optimize=True) for A in (V, Y))
            if size is None:
                size = np.sqrt(np.var(Y[mask], axis=0).sum(axis=1))[:, None]  # (heads, 1)
            X = self._scores(self._inputs(self.texts.parts[part]))
            values, targets = (torch.tensor(A / size, dtype=torch.float32) for A in (V, Y))
            lessons.append(Lesson(X, values, targets, torch.tensor(mask)))
        return lessons

    def _scores(self, X: NDArray[np.floating]) -> torch.Tensor:
        """What scores are made of: principal components of the inputs, on one scale."""
        mean, directions = self._components
        return torch.tensor((X - mean) @ directions, dtype=torch.float32)

    @cached_property
    def _components(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean ``(d,)`` and axes ``(d, components)`` of the texts to train on."""
        real = self._inputs(self.texts.parts[0])[self.texts.arrays[0][2]]
        return principal_axes(real, self.settings.components)

    def _inputs(self, part: NDArray[np.intp]) -> NDArray[np.floating]:
        """Of some texts, padded to the longest of them."""
        return self.found.padded("inputs", int(self.found.lengths[part].max()))[part]

    def convex(self) -> _Taught:
        """Certified static mixing of every head."""
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
            found = []  # of every head
            for head, fit in enumerate(fits):
                C = pair_coefficients(fit.Z, self.texts.places, flags)
                A = pair_coefficients(fit.attention, self.texts.places, flags)
                added = contribution_map(C, V[:, head] @ axes[head])
                found.append((A, norm_map(C), added, np.ones_like(A)))
            stacked = map(np.stack, zip(*found, strict=True))
            return dict(zip((*READINGS, "uniform"), stacked, strict=True))

        return _Taught(explained, maps_of, max(fit.certificate.relative_gap for fit in fits))

    # Comparison ---------------------------------------------------------------------------------

    def compared(self, maps_of: Callable[[Any], Maps]) -> Record:
        """Likeness to the teacher of every map, by head, with special tokens and without."""
        texts = [self.found[int(i)] for i in self.texts.parts[2][: self.settings.compared]]
        found = [maps_of(text) for text in texts]
        return {name: _mean(texts, [maps[name] for maps in found]) for name in found[0]}

    def shown(self, maps_of: Callable[[Any], Maps], heads: tuple[int, ...]) -> Record:
        """The maps of some heads of the sentence that is shown."""
        found = {"teacher": self.example.maps.astype(float)} | maps_of(self.example)
        found.pop("uniform", None)
        maps = {name: A[list(heads)].round(4).tolist() for name, A in found.items()}
        return {"tokens": self.example.tokens, "maps": maps}


@dataclass(frozen=True)
class Job(KeyedJob):
    """A student, and which of its trainings; the certified one is fitted once.

    `heads` are those whose maps are shown; certified mixing chooses them.
    """

    lecture: Lecture = field(repr=False)
    student: str
    training: int = 0
    heads: tuple[int, ...] | None = field(default=None, repr=False)

    def rules(self) -> Record:
        """How many trainings there are does not matter."""
        settings = {k: v for k, v in asdict(self.lecture.settings).items() if k != "seeds"}
        own = {"text": self.lecture.text, "settings": settings}
        return own | ({"heads": self.heads} if self.heads else {})

    def run(self) -> Record:
        """Shares and likeness of all heads; of the first training also maps of `heads`."""
        lecture, convex = self.lecture, self.student == "convex"
        taught = lecture.convex() if convex else lecture.trained(self.student, self.training)
        heads = self.heads or (int(np.argmax(taught.shares)), int(np.argmin(taught.shares)))
        return {
            "n_texts": [len(part) for part in lecture.texts.parts],
            "shares": taught.shares,
            "relative_gap": taught.relative_gap,
            "heads": heads,
            "likeness": lecture.compared(taught.maps_of),
            "example": None if self.training else lecture.shown(taught.maps_of, heads),
        }


def run(ledger: Ledger, lecture: Lecture) -> Record:
    """Teach what is not taught yet; certified mixing first, because it chooses what is shown."""
    convex = ledger.do(Job(lecture, "convex"), at_once=True)
    jobs = (
        Job(lecture, name, k, tuple(convex["heads"]))
        for name in ("softmax", "undertrained", "simplex")
        for k in range(lecture.settings.seeds)
    )
    found = {"convex": [convex]}
    for record in ledger.do_each(jobs):
        found.setdefault(record["student"], []).append(record)
    return ledger.header() | ({} if ledger.reasons else gather(found, lecture.settings))


def gather(found: dict[str, list[Record]], settings: Settings) -> Record:
    """The results of all jobs: lists are over the trainings of a student."""
    convex = found["convex"][0]
    return {
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


def _mean(texts: list[Any], maps: list[NDArray[np.float64]]) -> Record:
    """Mean likeness over texts, by head."""
    each = [
        [
            [likeness(own, A, keep) for own, A in zip(text.maps, mine, strict=True)]
            for keep in (None, text.segments >= 0)
        ]
        for text, mine in zip(texts, maps, strict=True)
    ]
    return {
        tokens: dict(zip(Likeness._fields, values.T.tolist(), strict=True))
        for tokens, values in zip(("all", "words"), np.mean(each, axis=0), strict=True)
    }


# What the page of probes says of them -------------------------------------------------------------

MEASURES = ("share", *Likeness._fields, *(f"words_{name}" for name in Likeness._fields))


def summary(results: Record) -> list[Record]:
    """A row per map: share that its student explains, and likeness to the teacher.

    Numbers are means over heads and trainings; ``errors`` are standard errors over trainings, None
    where there is one.
    """
    rows = []
    for name, found in (results["likeness"] | {"uniform": [results["uniform"]]}).items():
        shares = results["shares"][MAPS[name]] if name in MAPS else None
        values = {} if shares is None else {"share": np.mean(shares, axis=1)}
        for tokens, prefix in (("all", ""), ("words", "words_")):
            for measure in found[0][tokens]:
                by_head = [training[tokens][measure] for training in found]
                values[prefix + measure] = np.mean(by_head, axis=1)
        means = {key: float(np.mean(numbers)) for key, numbers in values.items()}
        errors = {key: standard_error(numbers) for key, numbers in values.items()}
        row = {"map": name, "trainings": len(found), "share": None, **means}
        rows.append(row | {"errors": errors})
    return rows


def facts(results: Record) -> Record:
    """The names of the template."""
    rows = {row["map"]: row for row in summary(results)}
    simplex = rows["simplex"]["cosine"]
    passed = sum(simplex > rows[name]["cosine"] for name in READINGS)
    return {
        "rows": rows,
        "shown": {name: [_shown(row, key) for key in MEASURES] for name, row in rows.items()},
        "heads": len(results["shares"]["convex"][0]),
        "convex_share": float(np.mean(results["shares"]["convex"][0])),
        "beside": {name: _beside(results, name) for name in ("simplex", "softmax")},
        "readings": sorted(READINGS, key=lambda name: -rows[name]["cosine"]),
        "passed": {0: "none", len(READINGS): "all"}.get(passed, str(passed)),
    }


def _shown(row: Record, key: str) -> str:
    return plus_minus(row.get(key), row["errors"].get(key), ".3f", ".4f")


def _beside(results: Record, name: str) -> str:
    """More or less than another student, and in how many heads, means over trainings."""
    convex = np.asarray(results["shares"]["convex"][0])
    other = np.mean(results["shares"][name], axis=0)
    verb = "more" if convex.mean() > other.mean() else "less"
    count = int(np.sum(convex > other if verb == "more" else convex < other))
    return f"{verb}, in {count} of {len(convex)} heads,"


# The figure: a sentence in the eyes of a head and of its students ---------------------------------

CELL = 0.155  # inches
COLUMNS = 4
LEFT, TOP, BOTTOM, GAP, TITLE, LABELS = 1.35, 0.65, 0.45, 0.2, 0.42, 0.75
NAMES = ("teacher", *MAPS)


@styled()
def draw(results: Record) -> Figure:
    """A block per head, the most and the least static; in it the teacher and its students."""
    from matplotlib import pyplot as plt

    examples = results["examples"]
    side = CELL * len(examples[0]["tokens"])
    row = TITLE + side
    block = -(-len(NAMES) // COLUMNS) * row + LABELS  # inches
    width = LEFT + COLUMNS * (side + GAP)
    height = TOP + len(examples) * block + BOTTOM
    figure = plt.figure(figsize=(width, height))
    for number, example in enumerate(examples):
        for place, name in enumerate(NAMES):
            down, across = divmod(place, COLUMNS)
            x = LEFT + across * (side + GAP)
            y = height - TOP - number * block - (down + 1) * row
            ax = figure.add_axes((x / width, y / height, side / width, side / height))
            _map(ax, np.array(example["maps"][name]))
            ax.set_title(name, fontsize=10, fontweight="normal", pad=5)
            middles = np.arange(len(example["tokens"])) + 0.5
            if across == 0:
                ax.set_yticks(middles, example["tokens"], fontsize=8)
            if place + COLUMNS >= len(NAMES):  # the lowest
                ax.set_xticks(middles, example["tokens"], fontsize=8, rotation=90)
            if place == 0:
                share = results["shares"]["convex"][0][example["head"]]
                words = f"head {example['head']}: static share {share:.2f}"
                ax.set_ylabel(words, fontsize=10, fontweight="bold")
    title = f"What students of a head look at ({results['settings']['model']}, layer "
    title += f"{results['settings']['layer']})"
    figure.text(0.12 / width, 1 - 0.32 / height, title, fontsize=13, fontweight="bold")
    note = (
        "Rows are targets, columns tokens; every row sums to one, colours go with the root. The "
        "most and the least static head; a sentence that no student has seen."
    )
    figure.text(0.12 / width, 0.15 / height, note, fontsize=8.5, color=MUTED)
    return figure


def _map(ax: Axes, A: Any) -> None:
    A = np.maximum(A, 0.0)
    total = A.sum(axis=1, keepdims=True)
    A = A / np.where(total > 0, total, 1.0)
    ax.pcolormesh(A, cmap="Blues", norm=PowerNorm(0.5, 0.0, 1.0))
    ax.set_xlim(0, A.shape[1])
    ax.set_ylim(A.shape[0], 0)
    ax.set_xticks([])
    ax.set_yticks([])
    bare(ax)
    for spine in ax.spines.values():
        spine.set(visible=True, color="#d5d9e0", linewidth=0.6)
