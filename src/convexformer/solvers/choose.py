"""Which strategy minimises a problem: predicted seconds of each, from one cost model.

Predictions are rough, and the same on every machine, so that a problem is solved the same way
everywhere. First-order strategies are predicted at their good speed; they watch their progress, and
give up where a second-order strategy promises to be done sooner (`working_set.Round.is_slow`).

``convexformer.solvers.choose.forecasts(problem, beta)`` shows the predictions for a problem.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from .. import _core
from ..problem import Logistic, Point, Problem, Softmax

COMPILED, WIDE_REGISTERS = _core.COMPILED, _core.wide_registers()

STRATEGIES = {
    "block-descent": "Block coordinate descent on tokens, for the squared loss.",
    "compiled-newton": "Newton's method in compiled code, for small logistic and softmax problems.",
    "gradient": "Proximal gradient with Barzilai-Borwein steps.",
    "newton": "Proximal Newton, with one unknown per token in use (secular equation).",
    "newton-cg": "L-BFGS on the factored form, then Newton's method by conjugate gradients.",
    "accelerated-gradient": "Accelerated proximal gradient: any penalty, and the last resort.",
}


@dataclass(frozen=True)
class Tuning:
    """All numbers that strategies share, or are chosen by; measured on AMD EPYC, one thread."""

    # The machine
    cache_bytes: float = 16e6  # that are quick to read again and again
    cache_speed: float = 40e9  # bytes a second from there,
    memory_speed: float = 16e9  # and from beyond
    speed64: float = 50e9  # multiply-adds a second of large products in float64,
    speed32: float = 80e9  # and in float32
    # Newton's method
    newton_overhead: float = 1.5  # factor over its products and factorisations
    newton_step_seconds: float = 8e-4  # of a step beyond these
    quadratic_steps: int = 8  # factorisations in all for a squared loss,
    other_steps: int = 18  # and for other losses,
    other_models: int = 6  # which also form so many second-order models
    kernel_ratio: float = 1.2  # coefficients per sample from which systems are in samples,
    kernel_updates: float = 4.0  # of a kernel in all, unless every token keeps its own
    kernel_overhead: float = 3.0  # factor over newton_step_seconds in a step with kernels
    newton_patience: float = 0.6  # part of Newton's seconds that first-order steps may take
    least_trial: float = 0.1  # and which they take before their speed is judged
    newton_start_gap: float = 1e-2  # relative gap that is a good start for Newton's method
    # Compiled Newton
    compiled_newton_factor: float = 0.1  # of Newton's seconds
    compiled_work: float = 5e7  # multiply-adds of a Hessian, beyond which BLAS is quicker,
    compiled_few_steps: float = 20  # unless it takes no longer than so many gradient steps,
    compiled_numbers: int = 1 << 23  # and memory is for so many curvatures of samples
    compiled_coefficients: int = 1024  # of a working set, at most
    # Block coordinate descent
    good_passes: float = 50.0  # over the working set, where tokens are not too correlated
    coefficients_per_sample: float = 8.0  # from which it takes proportionally more passes
    visit_seconds: float = 2e-7 if COMPILED else 6e-5  # of a token, beyond reading it
    cycle_seconds: float = 5e-5 if COMPILED else 4e-4  # of a call that makes several passes
    register_factor: float = 2.0 if WIDE_REGISTERS else 1.0  # of reading speed
    most_outputs: int = 64  # that move together where they share the norm of a token,
    most_separable_outputs: int = 8  # and where each has its own
    least_entries: float = 5e3  # of X: with fewer a factorisation costs nothing
    # Proximal gradient
    gradient_step_seconds: float = 1.5e-4  # beyond products
    loss_entry_seconds: float = 3e-8  # of the loss and its derivatives, per sample and output
    good_gradient_steps: float = 24.0  # in all, where tokens are not too correlated
    gradient_trial_steps: int = 8  # before its speed is judged
    least_gradient_entries: float = 1e5  # of X, times (c - 1)^2 for a softmax: with fewer a
    # factorisation costs nothing
    # Newton by conjugate gradients
    cg_products: float = 200.0  # with X in float32, from start to end
    cg_sketched: float = 800.0  # more products, of many columns at once, in all its sketches
    cg_seconds: float = 0.1  # beyond products
    cg_least_newton_seconds: float = 0.3  # below which Newton's method is left alone
    cg_flatness: float = 0.6  # of the spectrum, above which conjugate gradients are slow


TUNING = Tuning()


@dataclass(frozen=True)
class Forecast:
    """A strategy and what it is predicted to take."""

    strategy: str
    seconds: float


def choose(
    problem: Problem, beta: float, at: Point | None = None, without: Collection[str] = ()
) -> str:
    """The strategy of the least predicted seconds, from the point `at`.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.problem import Problem, Squared, TokenDesign, TokenOutput
    >>> from convexformer.solvers.choose import choose
    >>> rng = np.random.default_rng(0)
    >>> problem = Problem(
    ...     TokenDesign(rng.normal(size=(500, 30, 8))), Squared(), TokenOutput(),
    ...     rng.normal(size=(500, 1)),
    ... )
    >>> choose(problem, 0.1 * problem.beta_max)
    'block-descent'
    """
    found = [one for one in forecasts(problem, beta, at) if one.strategy not in without]
    return found[0].strategy if found else "accelerated-gradient"


def forecasts(problem: Problem, beta: float, at: Point | None = None) -> list[Forecast]:
    """Strategies worth considering for `problem` at `beta`, the quickest first."""
    if not problem.penalty.euclidean:
        return [Forecast("accelerated-gradient", 0.0)]
    at = problem.null if at is None else at
    design, (_, d, c) = problem.design, problem.shape
    n_wanted = len(at.wanted(beta))
    columns, entries = n_wanted * d, design.n_samples * design.n_groups * d
    unknowns = entries * (max(c - 1, 1) ** 2 if problem.loss.joint else 1)
    newton = newton_seconds(problem, columns)
    found = {"newton": newton}
    if compiles(problem, n_wanted):
        found["compiled-newton"] = TUNING.compiled_newton_factor * newton
    if descends(problem):
        if entries >= TUNING.least_entries:
            found["block-descent"] = block_descent_seconds(problem, n_wanted)
    elif unknowns >= TUNING.least_gradient_entries and not problem.loss.quadratic:
        steps = TUNING.good_gradient_steps
        found["gradient"] = steps * gradient_step_seconds(problem, design.n_samples * columns)
    if decays(problem, newton):
        found["newton-cg"] = newton_cg_seconds(problem, n_wanted)
        if "gradient" in found:
            found["gradient"] *= max(1.0, TUNING.cg_flatness / design.flatness) ** 2
    return sorted((Forecast(*one) for one in found.items()), key=lambda one: one.seconds)


# What strategies are for ------------------------------------------------------------------------


def suits(strategy: str, problem: Problem) -> bool:
    """Whether `strategy` can minimise `problem`, however long it may take."""
    loss, euclidean = problem.loss, problem.penalty.euclidean
    one = problem.n_outputs == 1 or problem.separable
    return {
        "block-descent": euclidean and loss.quadratic,
        "compiled-newton": COMPILED
        and euclidean
        and (isinstance(loss, Softmax) or (isinstance(loss, Logistic) and one)),
        "newton-cg": euclidean and not loss.damps,
        "accelerated-gradient": True,
    }.get(strategy, euclidean)


def descends(problem: Problem) -> bool:
    """Whether block coordinate descent is worth a forecast: squared loss, few outputs, d <= N."""
    few = problem.separable or problem.n_outputs <= TUNING.most_outputs  # else by chunks of them
    fits = few and problem.design.dim <= problem.design.n_samples
    return fits and problem.loss.quadratic and problem.penalty.euclidean


def compiles(problem: Problem, n_groups: int) -> bool:
    """Whether compiled Newton is for this problem, with so many groups in use."""
    if not COMPILED or not problem.penalty.euclidean:
        return False
    c, columns = problem.n_outputs, n_groups * problem.design.dim
    if not isinstance(problem.loss, Softmax if c > 1 else Logistic) or columns == 0:
        return False
    work = problem.design.gram_work(columns) * max(1, c * (c - 1) // 2)
    steps = work / (4 * problem.design.n_samples * columns * c)  # half of it, and two products
    few = steps <= TUNING.compiled_few_steps and problem.Y.size * c <= TUNING.compiled_numbers
    return columns * c <= TUNING.compiled_coefficients and (work <= TUNING.compiled_work or few)


def decays(problem: Problem, newton: float) -> bool:
    """Whether Newton's method, of so many seconds, is slow, and conjugate gradients are not.

    They take few products where the spectrum of X decays; it is only looked at where it matters.
    """
    slow = newton >= TUNING.cg_least_newton_seconds and not problem.loss.damps
    return slow and problem.design.flatness < TUNING.cg_flatness


# Seconds ------------------------------------------------------------------------------------------


def read_seconds(size: float) -> float:
    """Of reading an array of so many bytes once, if it is read again and again."""
    return size / (TUNING.cache_speed if size < TUNING.cache_bytes else TUNING.memory_speed)


def newton_seconds(problem: Problem, columns: int) -> float:
    """Newton's method, with so many columns in use."""
    design, used = problem.design, columns
    N = samples = design.n_samples
    if problem.loss.joint:
        used, samples = columns * problem.n_outputs, samples * (problem.n_outputs - 1)
    size, quadratic = min(used, samples), problem.loss.quadratic
    # Outputs that are solved one by one, and together.
    alone, c = (problem.n_outputs, 1) if problem.separable else (1, problem.n_outputs)
    models = 1 if quadratic else TUNING.other_models
    steps = TUNING.quadratic_steps if quadratic else TUNING.other_steps
    factor = size**3 * (4 / 3 if 2 * c > design.dim > 1 else 1 / 3)
    flops = steps * (factor + 4 * N * columns * (c - 1))  # many outputs take products, too
    overhead = steps * TUNING.newton_step_seconds
    if used > TUNING.kernel_ratio * samples:  # kernels, which do not depend on curvature
        # Tokens keep their own kernels, roughly, where samples are few beside channels.
        flops += N**2 * columns / 2 * (1.0 if 4 * design.dim >= N else TUNING.kernel_updates)
        return alone * (flops / TUNING.speed32 + TUNING.kernel_overhead * overhead)
    scattered = design.is_sparse and not problem.loss.joint
    flops += models * (design.gram_work(used) if scattered else N * used**2)
    return alone * (TUNING.newton_overhead * flops / TUNING.speed64 + overhead)


def block_descent_seconds(problem: Problem, n_groups: int) -> float:
    """Block coordinate descent on so many groups, at its good speed."""
    N, d, c = problem.design.n_samples, problem.design.dim, problem.n_outputs
    columns = n_groups * d
    passes = TUNING.good_passes * max(1.0, columns / (TUNING.coefficients_per_sample * N))
    if 2 * columns < N:  # by the Gram matrix
        prepare, token = problem.design.gram_work(columns) / TUNING.speed64, 4 * d * columns
    else:
        prepare, token = N * d * columns / TUNING.speed32, 4 * d * N
    chunks = -(-c // TUNING.most_separable_outputs) if problem.separable else 1
    return prepare + passes * chunks * pass_seconds(n_groups, token, -(-c // chunks))


def pass_seconds(n_groups: int, token_bytes: int, n_outputs: int) -> float:
    """One pass of block coordinate descent over tokens of so many bytes each."""
    reading = read_seconds(token_bytes * n_groups) / TUNING.register_factor
    visits = n_groups * TUNING.visit_seconds
    return TUNING.cycle_seconds / 10 + visits + (1 + 0.5 * n_outputs) * reading


def gradient_step_seconds(problem: Problem, numbers: int) -> float:
    """A proximal gradient step on so many entries of X."""
    c = problem.n_outputs
    product = 2 * read_seconds(4 * numbers)
    if c > 1:  # a few columns at once are slower than one
        product = max(2 * product, 2 * numbers * c / TUNING.speed64)
    entries = 0.0 if problem.loss.quadratic else TUNING.loss_entry_seconds * problem.Y.size
    return product + TUNING.gradient_step_seconds + entries


def newton_cg_seconds(problem: Problem, n_groups: int) -> float:
    """Newton's method by conjugate gradients on so many groups."""
    numbers = problem.design.n_samples * n_groups * problem.design.dim
    product = max(read_seconds(4 * numbers), numbers * problem.n_outputs / TUNING.speed32)
    sketch = TUNING.cg_sketched * numbers * problem.n_outputs / TUNING.speed32
    return TUNING.cg_products * product + sketch + TUNING.cg_seconds


# Linux's allocator takes every array beyond 128 KB from the system, page by page, until the first
# such array is freed; arrays up to its size are then kept for the next ones, as solvers want it.
# This array is freed at once.
np.empty(16 << 20, dtype=np.uint8)
