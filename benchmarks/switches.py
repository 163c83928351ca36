"""What can be left out of the solver, to see what it earns: strategies, kernels, short cuts.

A `Switch` puts something else in the place of functions of the package for as long as its context
lasts, and notes whether the solver asked for what is left out: where it did not there is nothing to
measure. Compiled code as a whole is left out by the environment (``CONVEXFORMER_CORE=numpy``),
which takes a process of its own: see `ablation`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from convexformer import _core
from convexformer._core import _numpy
from convexformer.problem import tokens
from convexformer.solvers import block_descent, choose, working_set, workspace
from convexformer.solvers.solve import Extrapolation

STRATEGIES = ("block-descent", "compiled-newton", "gradient", "newton-cg")
LOSS_KERNELS = (
    "loss_point",
    "balance",
    "logistic_expansion",
    "logistic_dual",
    "softmax_expansion",
    "softmax_dual",
)


@dataclass
class Switch:
    """A part of the solver that can be left out.

    Attributes
    ----------
    words : str
        What is left out, and what serves instead.
    patches : list
        A module or class, a name in it, and what makes the replacement of what it names, from this
        switch and what is replaced.
    used : bool
        Whether the solver asked for it since the context was entered.
    """

    words: str
    patches: list[tuple[Any, str, Callable[[Switch, Any], Any]]]
    used: bool = False

    @contextmanager
    def off(self) -> Iterator[Switch]:
        """Leave it out within the context."""
        self.used = False
        with ExitStack() as stack:
            for owner, name, replacement in self.patches:
                new = replacement(self, getattr(owner, name, None))
                stack.enter_context(patch.object(owner, name, new, create=True))
            yield self


def switches() -> dict[str, Switch]:
    """All of them, by name."""
    design, kernels = tokens.TokenDesign, workspace.NearKernels
    found = {name: _strategy(name) for name in STRATEGIES}
    found["gram"] = Switch(
        "block descent by the Gram matrix of the working set; in samples instead",
        [(block_descent, "gram_is_quick", _never), (working_set, "gram_is_quick", _never)],
    )
    found["gram-in-place"] = Switch(
        "Gram matrices of a few columns where these lie; columns are gathered first instead",
        [(design, "halves_gram", _never)],
    )
    found["int16"] = Switch(
        "tokens packed as whole numbers of 16 bits; float32 instead",
        [(block_descent.Tokens, "packs", _unpacked)],
    )
    found["sparse"] = Switch(
        "X that is mostly zero as compressed sparse rows; dense instead",
        [(tokens, "look_sparse", _never)],
    )
    found["own-kernels"] = Switch(
        "kernels that each token keeps; one weighted sum that is updated instead",
        [(kernels, "keeps_own", _never)],
    )
    found["float32"] = Switch(
        "columns in float32, for kernels and gradient steps; float64 or other strategies instead",
        [(workspace.Columns, "take", _never)],
    )
    found["extrapolation"] = Switch(
        "starts on the curve through the last points of a path; the last point instead",
        [(Extrapolation, "predict", _last_point)],
    )
    found["one-pass"] = Switch(
        "scores and correlations in one pass over X; one product after the other instead",
        [(design, "follows", _never)],
    )
    found["loss-kernels"] = Switch(
        "losses and intercepts in C; NumPy instead",
        [(_core, name, _in_numpy(name)) for name in LOSS_KERNELS],
    )
    return found


def _strategy(name: str) -> Switch:
    """Leaves out one of the strategies that `choose` knows."""

    def choosing(switch: Switch, was: Any) -> Any:
        def choice(problem: Any, beta: float, at: Any = None, without: Collection[str] = ()) -> str:
            switch.used |= was(problem, beta, at, without) == name
            return str(was(problem, beta, at, {*without, name}))

        return choice

    patches: list[Any] = [(choose, "choose", choosing)]
    if name == "newton-cg":  # nor do other strategies give up for it
        patches.append((choose, "newton_cg_seconds", lambda *_: lambda *_: float("inf")))
    return Switch(f"the strategy {name}; the next best instead", patches)


def _never(switch: Switch, was: Any) -> Any:
    """No, to a question."""

    def answer(*given: Any, **named: Any) -> bool:
        switch.used |= bool(was(*given, **named))
        return False

    return answer


def _last_point(switch: Switch, was: Any) -> Any:
    """What `predict` comes down to without a curve."""

    def predict(ahead: Extrapolation, beta: float) -> Any:
        if not ahead.points or ahead.problem.conditioned is not None:
            return None
        switch.used |= len(ahead.points) > 1
        return ahead.points[-1][1]

    return predict


def _unpacked(switch: Switch, was: Any) -> Any:
    """An attribute that stays False, whatever it is set to."""

    def note(_: block_descent.Tokens, packs: bool) -> None:
        switch.used |= packs

    return property(lambda _: False, note)


def _in_numpy(name: str) -> Callable[[Switch, Any], Any]:
    """NumPy's twin of a kernel."""

    def replacement(switch: Switch, was: Any) -> Any:
        def kernel(*given: Any) -> Any:
            switch.used = True
            return getattr(_numpy, name)(*given)

        return kernel

    return replacement
