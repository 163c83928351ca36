"""Pixels, pen strokes and smartwatch signals: counts, order of tokens, known facts."""

from collections import defaultdict

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from convexformer.datasets import motion, pendigits, satimage


def channel(data, name):
    """Return one channel of all tokens, ``(N, n)``."""
    return data.X[:, :, data.channel_names.index(name)]


def of_class(data, name):
    """Return which samples belong to a class."""
    return data.y == data.target_names.index(name)


def scene(X):
    """Return the line and column of each window ``(N, 9, 4)``, laid out by what they share.

    Windows that share six pixels are neighbours, as far as only one other window has these six.
    """
    links = defaultdict(list)
    for mine, theirs, step in (
        ([1, 2, 4, 5, 7, 8], [0, 1, 3, 4, 6, 7], (0, 1)),  # one column to the right
        ([3, 4, 5, 6, 7, 8], [0, 1, 2, 3, 4, 5], (1, 0)),  # one line down
    ):
        owners = defaultdict(list)
        for i, pixels in enumerate(X[:, theirs]):
            owners[pixels.tobytes()].append(i)
        for i, pixels in enumerate(X[:, mine]):
            if len(owners[pixels.tobytes()]) == 1:
                j = owners[pixels.tobytes()][0]
                links[i].append((j, np.array(step)))
                links[j].append((i, -np.array(step)))
    places, waiting = {0: np.zeros(2, dtype=int)}, [0]
    while waiting:
        i = waiting.pop()
        for j, step in links[i]:
            if j not in places:
                places[j] = places[i] + step
                waiting.append(j)
            assert (places[j] == places[i] + step).all(), "two windows contradict each other"
    return np.array(list(places.values()))


def test_satimage_counts_and_names():
    data = satimage()
    assert data.X.shape == (6435, 9, 4)
    assert np.bincount(data.y).tolist() == [1533, 703, 1358, 626, 707, 1508]
    assert data.target_names[5] == "very damp grey soil"
    assert data.token_names.index("centre") == 4 and data.token_names.index("NE") == 2
    assert data.sequences is None and data.groups is None
    assert data.X.min() == 27 and data.X.max() == 157 and not np.any(data.X % 1)


def test_satimage_windows_fit_into_one_scene_of_82_by_100_pixels():
    # Were the pixels listed in another order, the windows would not fit, or lie on their side.
    places = scene(satimage().X)
    assert len(places) == 6434  # of one window all neighbours are missing
    assert np.ptp(places, axis=0).tolist() == [79, 97]  # centres: one pixel less at each edge
    assert len(np.unique(places, axis=0)) == 6434


def test_satimage_centre_pixel_says_most():
    data = satimage()
    scores = [
        LinearDiscriminantAnalysis()
        .fit(data.X[::2, k], data.y[::2])
        .score(data.X[1::2, k], data.y[1::2])
        for k in range(9)
    ]
    assert data.token_names[int(np.argmax(scores))] == "centre"


def test_satimage_plants_reflect_infrared_and_swallow_red():
    data = satimage()
    red, infrared = channel(data, "red")[:, 4], channel(data, "infrared 1")[:, 4]
    crop = of_class(data, "cotton crop")
    assert (infrared / red)[crop].mean() > 2 > 1.5 > (infrared / red)[~crop].mean()


def test_pendigits_counts_and_names():
    data = pendigits()
    assert data.X.shape == (10992, 8, 2)
    assert np.bincount(data.y).tolist() == [
        1143, 1143, 1144, 1055, 1144, 1055, 1056, 1142, 1055, 1055,
    ]  # fmt: skip
    assert data.target_names == tuple("0123456789") and data.channel_names == ("x", "y")
    assert data.token_names == ("p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8")


@pytest.mark.parametrize("name", ["x", "y"])
def test_pendigits_fill_their_box(name):
    values = channel(pendigits(), name)
    assert (values.min(axis=1) == 0).all() and (values.max(axis=1) == 100).all()


def test_pendigits_are_written_as_people_do():
    data = pendigits()
    middle = {digit: np.median(data.X[of_class(data, digit)], axis=0) for digit in "0123456789"}
    x, y = 0, 1
    assert middle["2"][0, x] < 40 and middle["2"][-1, x] > 90 and middle["2"][-1, y] < 10
    assert middle["6"][0, y] > 90 and middle["6"][-1, y] < 40  # from the top into the loop
    assert middle["1"][-1, y] < 10 and middle["4"][0, y] > 90
    zero = data.X[of_class(data, "0")]
    gap = np.linalg.norm(zero[:, 0] - zero[:, -1], axis=1)
    assert np.median(gap) < 40  # a zero closes
    assert np.median(np.abs(middle["2"][0] - middle["2"][-1]).sum()) > 100  # a two does not


def test_motion_counts_names_and_persons():
    data = motion()
    assert data.X.shape == (1833, 8, 6)
    assert np.bincount(data.y).tolist() == [198, 299, 306, 283, 284, 228, 235]
    assert np.bincount(data.groups)[1:].tolist() == [
        220, 212, 119, 116, 191, 186, 206, 191, 190, 202,
    ]  # fmt: skip
    assert data.groups.dtype == np.int64 and data.groups.shape == data.y.shape
    assert len(set(zip(data.groups, data.y, strict=True))) == 70  # everyone did everything
    assert data.token_names == tuple(f"{0.32 * k:.2f} s" for k in range(8))
    assert "".join(data.channel_names) == "axayazwxwywz"


def test_motion_a_hanging_arm_feels_gravity_along_the_forearm():
    data = motion()
    hanging = of_class(data, "pendulum")
    assert -1.15 < channel(data, "ax")[hanging].mean() < -0.95
    assert (channel(data, "ax")[hanging].mean(axis=1) < 0).mean() > 0.98  # with either arm
    rotation = of_class(data, "internal rotation")  # the forearm lies flat, thumb up
    assert 0.9 < channel(data, "ay")[rotation].mean() < 1.1


def test_motion_raising_the_arm_turns_it_most():
    data = motion()
    speed = np.abs(channel(data, "wy")).mean(axis=1)
    up = of_class(data, "abduction") | of_class(data, "forward elevation")
    still = of_class(data, "bent-over row")
    assert np.median(speed[up]) > 4 * np.median(speed[still])


def test_motion_slices_follow_each_other_in_time():
    # Neighbouring slices resemble each other more than distant ones; shuffled tokens would not.
    wy = channel(motion(), "wy")
    steps = [np.mean((wy[:, 1:] - wy[:, :-1]) ** 2), np.mean((wy[:, 2:] - wy[:, :-2]) ** 2)]
    assert steps[0] < 0.7 * steps[1]
