"""Fits that fail, or that Ctrl-C ends, leave an estimator that is whole: unfitted, old or new."""

import contextlib
import os
import pickle
import signal
import threading
import time
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from convexformer import (
    ConvexAttentionClassifier,
    ConvexAttentionClassifierCV,
    ConvexAttentionRegressor,
    ConvexSequenceClassifier,
    ConvexSequenceRegressor,
    ConvexTransformerClassifier,
    PooledTokens,
    TokenScaler,
    attention_path,
)
from convexformer.solvers import Status

MOMENTS = 20
rng = np.random.default_rng(0)
X_OLD, X_NEW = rng.normal(size=(120, 6, 3)), rng.normal(size=(400, 20, 10))
Y_OLD = np.where(X_OLD[:, 1, 0] > 0, "old +", "old -")
Y_NEW = np.array(["new a", "new b", "new c"])[X_NEW[:, 2, :3].argmax(axis=1)]
# Labels of every position, which are those of a token in another place.
POSITIONS_OLD = np.where(X_OLD[:, ::-1, 0] > 0, "old +", "old -")
X_SHORT = X_NEW[:, :8, :4]  # matrix targets take far longer
POSITIONS_NEW = np.array(["new a", "new b", "new c"])[X_SHORT[:, ::-1, :3].argmax(axis=2)]


def quick():
    return ConvexAttentionClassifier(0.01, tol=1e-10)


def gated():
    return ConvexTransformerClassifier(0.05, n_gates=4, random_state=0, tol=1e-8)


def cross_validated():
    return ConvexAttentionClassifierCV(n_betas=4, eps=0.05, cv=2, tol=1e-8)


def sequence():
    return ConvexSequenceClassifier(0.1, tol=1e-6)


def fingerprint(model, X):
    """What a model says, and what it says of itself."""
    return (
        model.classes_.tolist(),
        model.n_features_in_,
        model.coef_.tobytes(),
        model.predict(X).tolist(),
        model.certificate_,
        model.status_,
    )


def agrees(model, X):
    """Whether the certificate is about these coefficients: the penalty alone is below primal."""
    if isinstance(model, ConvexSequenceClassifier):
        size = np.abs(model.coef_).sum(axis=3).max(axis=2).sum()
    else:
        size = np.linalg.norm(model.coef_, axis=-1).sum()
    return model.beta_ * size <= model.certificate_.primal and len(model.predict(X)) == len(X)


@contextlib.contextmanager
def ctrl_c(seconds, hits):
    """Ctrl-C after some seconds, unless the block ends before; `hits` is told which came first."""
    sent = threading.Event()

    def send():
        sent.set()
        os.kill(os.getpid(), signal.SIGINT)

    timer, missed = threading.Timer(seconds, send), False
    timer.start()
    try:
        yield
        missed = not sent.is_set()
        timer.cancel()
        timer.join()
    except KeyboardInterrupt:
        timer.join()
    hits.append(not missed)


def moments(seed):
    """Moments spread over a fit and a little beyond, as fractions of it, in random order."""
    return np.random.default_rng(seed).permutation(np.linspace(0.0, 1.1, MOMENTS))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [quick, gated, cross_validated, sequence])
@pytest.mark.parametrize("on_interrupt", ["raise", "keep"])
def test_ctrl_c_at_any_moment_leaves_a_whole_model(make, on_interrupt):
    y_old, X_new, y_new = Y_OLD, X_NEW, Y_NEW
    if make is sequence:
        y_old, X_new, y_new = POSITIONS_OLD, X_SHORT, POSITIONS_NEW
    old = make().fit(X_OLD, y_old)
    was = fingerprint(old, X_OLD)
    start = time.perf_counter()
    new = fingerprint(make().fit(X_new, y_new), X_new)
    seconds = time.perf_counter() - start
    hits = []
    for k, moment in enumerate(moments(seed=1)):
        model = make().set_params(on_interrupt=on_interrupt)
        if k % 2:
            model = model.fit(X_OLD, y_old)
        start = time.perf_counter()
        try:
            with ctrl_c(moment * seconds, hits):
                model.fit(X_new, y_new)
        except KeyboardInterrupt:  # as the timer was being joined, before `hits` was told
            pass
        hits += [True] * (k + 1 - len(hits))
        taken = time.perf_counter() - start
        if not hasattr(model, "coef_"):
            assert not [name for name in vars(model) if name.endswith("_")] and not k % 2
            with pytest.raises(NotFittedError):
                model.predict(X_new)
        elif model.n_features_in_ == X_OLD[0].size:
            assert k % 2 and fingerprint(model, X_OLD) == was
        elif model.status_ is Status.INTERRUPTED:
            assert on_interrupt == "keep"
            assert model.certificate_.relative_gap > model.tol and agrees(model, X_new)
            assert model.certificate_.primal >= new[4].dual and model.classes_.tolist() == new[0]
        elif on_interrupt == "keep" and hits[-1]:  # the best iterate may be good enough
            assert model.status_ is Status.CONVERGED and agrees(model, X_new)
            assert model.certificate_.relative_gap <= model.tol
        else:
            assert fingerprint(model, X_new) == new
        if not hits[-1]:
            seconds = min(seconds, taken)  # the first fit may be slow
        pickle.loads(pickle.dumps(model))
    assert sum(hits) >= MOMENTS / 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("on_interrupt", ["raise", "keep"])
def test_ctrl_c_at_any_moment_of_a_path(on_interrupt):
    model, settings = ConvexAttentionClassifier(tol=1e-8), {"n_betas": 8, "eps": 0.02}
    start = time.perf_counter()
    whole = attention_path(model, X_NEW, Y_NEW, **settings)
    model.set_params(on_interrupt=on_interrupt)
    seconds = time.perf_counter() - start
    hits = []
    for moment in moments(seed=2):
        path, start = None, time.perf_counter()
        try:
            with ctrl_c(moment * seconds, hits):
                path = attention_path(model, X_NEW, Y_NEW, **settings)
        except KeyboardInterrupt:
            pass
        if not hits[-1]:
            seconds = min(seconds, time.perf_counter() - start)  # the first path may be slow
        if path is None:
            continue
        count = len(path.betas)
        assert count == len(whole.betas) or on_interrupt == "keep"
        for name in ("coefs", "intercepts", "certificates", "token_norms", "n_tokens_used"):
            assert len(getattr(path, name)) == count
        np.testing.assert_array_equal(path.betas, whole.betas[:count])
        stopped = on_interrupt == "keep" and hits[-1]  # perhaps at the last beta
        done = count - 1 if stopped else count
        np.testing.assert_allclose(path.coefs[:done], whole.coefs[:done], atol=1e-3)
    assert sum(hits) >= MOMENTS / 2


def test_a_kept_fit_warns_and_names_its_gap():
    model = ConvexAttentionClassifier(1e-4, tol=1e-13, on_interrupt="keep")
    seen = []

    def interrupt_at(point):
        seen.append(point)
        if len(seen) == 1:
            signal.raise_signal(signal.SIGINT)

    model.set_params(verbose=interrupt_at)
    with pytest.warns(ConvergenceWarning, match="Interrupted at a relative duality gap"):
        model.fit(X_NEW, Y_NEW)
    assert model.status_ is Status.INTERRUPTED
    assert agrees(model, X_NEW)


def test_a_path_that_ends_early_says_so():
    def interrupt(point):
        if point.n_active > 3:
            signal.raise_signal(signal.SIGINT)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = ConvexAttentionClassifier(verbose=interrupt, on_interrupt="keep")
        path = attention_path(model, X_NEW, Y_NEW, n_betas=8)
    assert 1 < len(path.betas) < 8
    assert any("the path ends at beta" in str(w.message) for w in caught)


def raising(point):
    raise RuntimeError("in a callback")


@pytest.mark.parametrize(
    ("settings", "X", "y"),
    [
        ({}, X_NEW, Y_NEW[:-1]),  # lengths differ
        ({}, X_NEW, np.full(len(X_NEW), "one")),  # after X was read
        ({"token_weights": [1.0]}, X_NEW, Y_NEW),  # after y was read
        ({"verbose": raising}, X_NEW, Y_NEW),  # in the solve
    ],
)
@pytest.mark.parametrize("make", [quick, gated, cross_validated])
def test_a_second_fit_that_fails_leaves_the_old_model(make, settings, X, y):
    model = make().fit(X_OLD, Y_OLD)
    was, kept = fingerprint(model, X_OLD), set(vars(model))
    with pytest.raises((ValueError, RuntimeError)):
        model.set_params(**settings).fit(X, y)
    model.set_params(token_weights=None)
    assert fingerprint(model, X_OLD) == was and set(vars(model)) == kept


@pytest.mark.parametrize(
    ("model", "good", "bad"),
    [
        (TokenScaler(), (X_OLD,), (np.full((5, 2, 2), np.nan),)),
        (PooledTokens(), (X_OLD,), (np.full((5, 2, 2), np.nan),)),
        (ConvexSequenceRegressor(0.5), (X_OLD, X_OLD), (X_NEW, X_OLD)),
        (ConvexAttentionRegressor(0.5), (X_OLD, X_OLD[:, 0, 0]), (X_NEW, X_OLD[:, 0, 0])),
    ],
)
def test_every_estimator_keeps_the_old_model(model, good, bad):
    model.fit(*good)
    before = pickle.dumps(model)
    with pytest.raises(ValueError, match=r"."):
        model.fit(*bad)
    assert pickle.dumps(model) == before
    assert model.n_features_in_ == X_OLD[0].size


def test_a_second_fit_leaves_nothing_of_the_first():
    model = ConvexAttentionClassifier(0.5, refit=True).fit(X_OLD, Y_OLD)
    model.set_params(refit=False).fit(X_NEW, Y_NEW)
    fresh = ConvexAttentionClassifier(0.5).fit(X_NEW, Y_NEW)
    assert set(vars(model)) == set(vars(fresh))


def test_what_a_callback_sets_on_the_estimator_stays():
    model = ConvexAttentionClassifier(0.5, max_iter=9_999)

    def watch(point):
        model.last_point_, model.max_iter, model.coef_ = point, 10_000, "overwritten"

    model.verbose = watch
    model.fit(X_OLD, Y_OLD)
    assert model.last_point_.relative_gap == model.trace_[-1].relative_gap
    assert model.max_iter == 10_000 and model.coef_ == "overwritten"


class WithHandle(ConvexAttentionClassifier):
    """An estimator with a handle that cannot be saved."""

    def __getstate__(self):
        state = super().__getstate__()
        state.pop("handle", None)
        return state


def test_a_fit_keeps_what_pickles_leave_out():
    model = WithHandle(0.5)
    model.handle = threading.Lock()
    handle = model.handle
    model.fit(X_OLD, Y_OLD)
    assert model.handle is handle and model.predict(X_OLD).shape == (len(X_OLD),)
    pickle.loads(pickle.dumps(model))


def test_warm_starts_still_begin_with_the_last_fit():
    model = ConvexAttentionRegressor(0.05, warm_start=True, tol=1e-8)
    y = X_OLD[:, 1, 0] + 0.5 * X_OLD[:, 3, 1]
    model.fit(X_OLD, y)
    seen = []
    model.set_params(verbose=lambda point: seen.append(point.relative_gap)).fit(X_OLD, y)
    assert seen[0] <= 1e-6


def test_on_interrupt_is_checked():
    for model in (ConvexAttentionClassifier(on_interrupt="stop"), ConvexSequenceRegressor()):
        model.set_params(on_interrupt="stop")
        with pytest.raises(ValueError, match="on_interrupt must be 'raise' or 'keep'"):
            model.fit(X_OLD, X_OLD)
