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


def quick():
    return ConvexAttentionClassifier(0.01, tol=1e-10)


def gated():
    return ConvexTransformerClassifier(0.05, n_gates=4, random_state=0, tol=1e-8)


def cross_validated():
    return ConvexAttentionClassifierCV(n_betas=4, eps=0.05, cv=2, tol=1e-8)


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
    size = np.linalg.norm(model.coef_, axis=-1).sum()
    return model.beta_ * size <= model.certificate_.primal and len(model.predict(X)) == len(X)


@contextlib.contextmanager
def ctrl_c(seconds):
    """Ctrl-C after some seconds, unless the block ends before."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
        timer.cancel()
        timer.join()
    except KeyboardInterrupt:
        timer.join()


def moments(seconds, seed):
    """Moments that are spread over so many seconds, in random order."""
    return np.random.default_rng(seed).permutation(np.linspace(0.0, 1.1 * seconds, MOMENTS))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [quick, gated, cross_validated])
@pytest.mark.parametrize("on_interrupt", ["raise", "keep"])
def test_ctrl_c_at_any_moment_leaves_a_whole_model(make, on_interrupt):
    old = make().fit(X_OLD, Y_OLD)
    was = fingerprint(old, X_OLD)
    start = time.perf_counter()
    new = fingerprint(make().fit(X_NEW, Y_NEW), X_NEW)
    seconds = time.perf_counter() - start
    met = 0
    for k, moment in enumerate(moments(seconds, seed=1)):
        model = make().set_params(on_interrupt=on_interrupt)
        if k % 2:
            model = model.fit(X_OLD, Y_OLD)
        try:
            with ctrl_c(moment):
                model.fit(X_NEW, Y_NEW)
        except KeyboardInterrupt:  # as the timer was being joined
            pass
        if not hasattr(model, "coef_"):
            met += 1
            assert not [name for name in vars(model) if name.endswith("_")] and not k % 2
            with pytest.raises(NotFittedError):
                model.predict(X_NEW)
        elif model.n_features_in_ == X_OLD[0].size:
            met += 1
            assert k % 2 and fingerprint(model, X_OLD) == was
        elif model.status_ is Status.INTERRUPTED:
            met += 1
            assert on_interrupt == "keep"
            assert model.certificate_.relative_gap > model.tol and agrees(model, X_NEW)
            assert model.certificate_.primal >= new[4].dual and model.classes_.tolist() == new[0]
        else:
            assert fingerprint(model, X_NEW) == new
        pickle.loads(pickle.dumps(model))
    assert met > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("on_interrupt", ["raise", "keep"])
def test_ctrl_c_at_any_moment_of_a_path(on_interrupt):
    settings = {"task": "classification", "n_betas": 8, "eps": 0.02, "tol": 1e-8}
    start = time.perf_counter()
    whole = attention_path(X_NEW, Y_NEW, **settings)
    seconds = time.perf_counter() - start
    met = 0
    for moment in moments(seconds, seed=2):
        path = None
        try:
            with ctrl_c(moment):
                path = attention_path(X_NEW, Y_NEW, on_interrupt=on_interrupt, **settings)
        except KeyboardInterrupt:
            pass
        if path is None:
            met += 1
            continue
        count = len(path.betas)
        met += count < len(whole.betas)
        assert count == len(whole.betas) or on_interrupt == "keep"
        for name in ("coefs", "intercepts", "certificates", "token_norms", "n_tokens_used"):
            assert len(getattr(path, name)) == count
        np.testing.assert_array_equal(path.betas, whole.betas[:count])
        done = count if count == len(whole.betas) else count - 1
        np.testing.assert_allclose(path.coefs[:done], whole.coefs[:done], atol=1e-3)
    assert met > 0


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
        path = attention_path(
            X_NEW, Y_NEW, task="classification", n_betas=8, verbose=interrupt, on_interrupt="keep"
        )
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
        with pytest.raises(ValueError, match="on_interrupt must be one of 'raise', 'keep'"):
            model.fit(X_OLD, X_OLD)
