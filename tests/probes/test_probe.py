"""The probe is right about heads whose answer is known by construction."""

import json

import numpy as np
import pytest
from tests.probes import heads

from convexformer import ConvexAttentionRegressor, Offsets, probe
from convexformer.activations import ArrayActivations
from convexformer.cli._console import to_json
from convexformer.probes import LayerProbe, _probe
from convexformer.probes._static import PATIENCE, compress, deviations, fit_static

WINDOW = 8
NAMED = {f"{o:+d}" if o else "0": heads.at_offset(o) for o in range(-WINDOW, WINDOW + 1)}
NAMED |= {"first": heads.first, "last": heads.last, "mean": heads.uniform}


@pytest.fixture(scope="module", params=[0, 1, 2])
def known(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("known")
    return probe(
        heads.write(folder, list(NAMED.values()), seed=request.param, n_texts=80), window=WINDOW
    )


@pytest.mark.parametrize("head", range(len(NAMED)), ids=list(NAMED))
def test_the_right_place_is_named_every_time(known, head):
    name, found = list(NAMED)[head], known.heads[head]
    assert found.top[0] == name
    assert found.names[np.argmax(found.attention)] == name
    assert found.attention.max() > 0.7 and found.attention.sum() <= 1 + 1e-6
    assert found.share > 0.75  # not 1: near the ends a head at an offset attends to itself
    assert found.certificate.relative_gap <= 1e-6
    if name not in ("first", "last", "mean"):
        assert found.offset == found.model_offset == name


def test_static_heads_are_static_and_content_is_not(tmp_path):
    mixture = heads.mixed((0.5, heads.at_offset(-1)), (0.3, heads.first), (0.2, heads.uniform))
    half = heads.mixed((0.5, heads.at_offset(2)), (0.5, heads.content))
    found = probe(heads.write(tmp_path, [heads.content, mixture, half]), window=4)
    content, static, mixed = found.heads
    assert content.share < 0.2
    assert static.share > 0.97
    weights = dict(zip(static.names, static.attention, strict=True))
    assert weights["-1"] == pytest.approx(0.5, abs=0.03)
    assert weights["first"] == pytest.approx(0.3, abs=0.05)
    assert weights["mean"] == pytest.approx(0.2, abs=0.05)
    assert static.top[:2] == ["-1", "first"]
    assert mixed.offset == "+2" and content.share < mixed.share < static.share
    for head in found.heads:  # with more freedom, no worse, but for what training cannot know
        assert head.share >= head.attention_share - 0.02
        assert head.attention_share >= head.model_attention_share - 0.02
        assert 0 < head.share_error < 0.05


def test_heads_that_look_back_only(tmp_path):
    kinds = [heads.at_offset(0), heads.at_offset(-1), heads.at_offset(-3), heads.first]
    kinds += [heads.uniform_so_far, heads.content_so_far]
    found = probe(heads.write(tmp_path, kinds), window=4)
    assert found.causal
    assert found.heads[0].names == ("-4", "-3", "-2", "-1", "0", "first", "mean so far")
    tops = [head.top[0] for head in found.heads[:-1]]
    assert tops == ["0", "-1", "-3", "first", "mean so far"]
    assert found.heads[4].share > 0.99 and found.heads[5].share < 0.6


def test_separators_of_pairs_are_a_landmark(tmp_path):
    def middle(n, rng):
        return np.eye(n)[np.full(n, n // 2)]

    found = probe(heads.write(tmp_path, [middle, heads.uniform], inner_separator=True), window=2)
    assert "separators" in found.heads[0].names
    assert found.heads[0].top[0] == "separators" and found.heads[0].share > 0.99


def test_the_fit_is_that_of_the_estimator(tmp_path):
    """Its smaller equal problem has the optimum of ``Offsets`` with ``penalty="token"``."""
    activations = heads.write(
        tmp_path, [heads.mixed((0.5, heads.at_offset(1)), (0.5, heads.content))]
    )
    texts = _probe._Texts(activations, 3, _probe._split(activations, 100, 0))
    train, validation, _ = texts.of_head(0)
    betas = np.array([1.0, 0.05])
    fit = fit_static(train, validation, betas, 1e-9)
    V, Y, mask, _ = texts.arrays[0]
    axes = _probe._axes(activations.projection[0][0])
    model = ConvexAttentionRegressor(
        beta=0.05,
        tokens=Offsets(-3, 3, ["first", "last", "mean"]),
        penalty="token",
        token_weights=deviations(compress(train)[0]),
        tol=1e-9,
    ).fit(V[:, :, 0] @ axes, Y[:, :, 0] @ axes, mask=mask)
    certificate = fit.certificate
    assert certificate.primal == pytest.approx(model.certificate_.primal, rel=1e-7)
    assert certificate.beta_max == pytest.approx(model.beta_max_, rel=1e-6)
    np.testing.assert_allclose(fit.Z.transpose(2, 0, 1), model.coef_, atol=1e-4)


def test_shares_do_not_depend_on_coordinates_or_threads(tmp_path):
    activations = heads.write(tmp_path / "a", [heads.at_offset(-1), heads.content], n_texts=60)
    once, again = (probe(activations, window=2, n_jobs=jobs) for jobs in (1, 2))
    assert repr(once) == repr(again)
    turn = np.random.default_rng(0).normal(size=(heads.E, heads.E))
    kinds = [heads.at_offset(-1), heads.content]
    turned = probe(heads.write(tmp_path / "b", kinds, n_texts=60, turn=turn), window=2)
    for one, other in zip(once.heads, turned.heads, strict=True):
        assert one.share == pytest.approx(other.share, abs=1e-4)
    assert probe(activations, window=2, seed=1).heads[0].share != once.heads[0].share


def test_the_same_text_is_in_one_part_only(tmp_path, monkeypatch):
    activations = heads.write(tmp_path, [heads.first], n_texts=60)
    monkeypatch.setattr(activations, "tokens", lambda i: ["token", str(i % 30)])
    parts = _probe._split(activations, 1000, seed=0)
    assert [len(part) for part in parts] == [18, 6, 6]
    assert len({i % 30 for part in parts for i in part}) == 30


def test_texts_shorter_than_the_window(recwarn):
    """A text of 5 tokens has none 8 before a target; it counts for the places that it has."""
    rng = np.random.default_rng(0)
    mask = np.arange(12) < rng.integers(1, 13, size=(60, 1))
    source = np.maximum(0, np.arange(12) - 1)  # the token before, where there is one
    maps = np.broadcast_to(np.eye(12)[source], (60, 1, 12, 12))
    found = probe(ArrayActivations(rng.normal(size=(60, 12, 1, 3)), maps, mask))
    assert found.heads[0].offset == found.heads[0].model_offset == "-1"
    assert found.heads[0].names[0] == "-8" and found.heads[0].share > 0.7


def test_a_path_ends_when_validation_errors_rise(tmp_path):
    """Few texts of many channels: weaker penalties only fit noise, and are not tried."""
    half = heads.mixed((0.5, heads.at_offset(2)), (0.5, heads.content))
    with pytest.warns(UserWarning, match="few texts"):
        found = probe(heads.write(tmp_path, [half], n_texts=24)).heads[0]
    best = int(np.argmax(found.validation))
    assert len(found.betas) == len(found.validation) == best + 1 + PATIENCE < len(_probe.BETAS)


def test_a_constant_head_does_not_stop_the_others(tmp_path):
    kinds = [heads.at_offset(-1), heads.first]
    found = probe(heads.write(tmp_path, kinds, n_texts=60, constant=0), window=3)
    assert [head.constant for head in found.heads] == [True, False]
    assert np.isnan(found.heads[0].share) and found.heads[1].share > 0.9
    assert found.varying == found.heads[1:] and found.worst_gap <= 1e-6
    again = LayerProbe.from_dict(json.loads(to_json(found.to_dict())))
    assert again.heads[0].constant and repr(again) == repr(found)


def test_plain_numbers_for_json(tmp_path):
    done = []
    activations = heads.write(tmp_path, [heads.first, heads.uniform], n_texts=40)
    found = probe(tmp_path, window=2, report=lambda *counts: done.append(counts))
    assert done == [(1, 2), (2, 2)]
    described = found.to_dict()
    assert described["agreement"] == found.agreement and len(described["heads"]) == 2
    assert described["heads"][0]["certificate"]["primal"] > 0
    assert sum(found.n_targets) == activations.lengths.sum()
    json.dumps({key: value for key, value in described.items() if key != "heads"})


def test_arrays_that_do_not_fit():
    values, maps = np.zeros((3, 4, 2, 5)), np.zeros((3, 2, 4, 4))
    with pytest.raises(ValueError, match=r"values must have shape .* got \(3, 4, 2\)"):
        ArrayActivations(values[..., 0], maps)
    with pytest.raises(
        ValueError, match=r"maps must have shape .*\(3, 2, 4, 4\), got \(3, 2, 4, 3\)"
    ):
        ArrayActivations(values, maps[..., :3])
    with pytest.raises(ValueError, match="real tokens before padding"):
        ArrayActivations(values, maps, mask=np.array([[0, 1, 1, 1]] * 3))


def test_arrays_with_nan_are_named_and_padding_may_hold_anything():
    values, maps = np.zeros((3, 4, 2, 5)), np.zeros((3, 2, 4, 4))
    values[1, 3] = maps[2, :, :, 3] = np.nan
    with pytest.raises(ValueError, match="values of text 1 have NaN"):
        ArrayActivations(values, maps)
    with pytest.raises(ValueError, match="maps of text 2 have NaN"):
        ArrayActivations(np.zeros_like(values), maps)
    ArrayActivations(values, maps, mask=np.arange(4) < np.full((3, 1), 3))
    with pytest.raises(ValueError, match="not be empty"):
        ArrayActivations(values[:0], maps[:0])


def test_arrays_that_are_the_same_text_are_in_one_part_only():
    rng = np.random.default_rng(0)
    values, maps = rng.normal(size=(30, 5, 1, 2)), rng.dirichlet(np.ones(5), size=(30, 1, 5))
    doubled = ArrayActivations(np.tile(values, (2, 1, 1, 1)), np.tile(maps, (2, 1, 1, 1)))
    parts = _probe._split(doubled, 1000, seed=0)
    assert len({i % 30 for part in parts for i in part}) == sum(map(len, parts)) == 30


def test_what_cannot_be_probed(tmp_path):
    with pytest.raises(ValueError, match=r"20 different texts at least.*got 12"):
        probe(heads.write(tmp_path / "few", [heads.first], n_texts=12))
    activations = heads.write(tmp_path / "some", [heads.first], n_texts=30)
    with pytest.raises(ValueError, match="window must be a positive"):
        probe(activations, window=0)
    with pytest.raises(ValueError, match="tol must be positive, got 0"):
        probe(activations, tol=0)
    activations.keep = ("heads",)
    with pytest.raises(ValueError, match="has no values and no maps; extract again"):
        probe(activations)
    with pytest.raises(ValueError, match="holds no activations"):
        probe(tmp_path / "nothing")
