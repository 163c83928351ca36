"""Shoulder exercises seen by a smartwatch."""

from convexformer.datasets._tokens import TokenDataset, read_numbers

EXERCISES = (
    "pendulum",
    "abduction",
    "forward elevation",
    "internal rotation",
    "external rotation",
    "trapezius row",
    "bent-over row",
)
SECONDS = 0.32  # of one token

DESCRIPTION = """\
Which exercise is the arm doing?

Ten people did seven exercises of shoulder physiotherapy, twenty times each, with either arm and a
smartwatch on the wrist: 140 recordings of six signals at 50 Hz, acceleration (channels ax, ay, az
in g) and angular velocity (wx, wy, wz in rad/s). Here are 1,833 windows of 2.56 s. A window is
eight slices of 0.32 s (tokens named by their start), and a token is the mean of each signal over
its slice. `groups` says which person: keep persons apart in splits to ask for new people. They seem
to have come in pairs that kept the same pace (1 and 2, 3 and 4, 5 and 6, 7 and 10, 8 and 9).

Each recording was cut from its start, without overlap, dropping a rest shorter than a window.
Recordings of the left arm were mirrored (ax, wy and wz change sign), because along the forearm x
points the other way there: a hanging arm has ax = 1.0 on the left and -1.1 on the right. Values
are rounded to 0.001. No window occurs twice. Windows start at any moment of a movement, so a
position in the window means little by itself; what matters are the posture (the mean) and how
signals vary and go together. Rows are in a fixed order unrelated to signals and class.

Source: part of the Shoulder Physiotherapy Activity Recognition data of D. Burns et al., from the
package seglearn 1.2.5, copyright 2018 D. M. Burns, BSD 3-Clause. Please cite D. M. Burns et al.,
Physiological Measurement 39 (2018), 075007. Full attribution: datasets/data/ATTRIBUTION.md in the
package.
"""


def motion() -> TokenDataset:
    """Load windows of smartwatch signals and the exercise the wearer was doing.

    Returns
    -------
    TokenDataset
        `X` (1833, 8, 6), tokens in time, channels acceleration and angular velocity; `y` one of
        seven exercises; `groups` one of ten persons, 1 to 10. See `description` for source and
        preparation.

    Examples
    --------
    >>> from convexformer.datasets import motion
    >>> windows = motion()
    >>> windows.X.shape, windows.token_names[:3], windows.channel_names[:3]
    ((1833, 8, 6), ('0.00 s', '0.32 s', '0.64 s'), ('ax', 'ay', 'az'))
    >>> hanging = windows.X[windows.y == windows.target_names.index("pendulum")]
    >>> float(hanging[:, :, 0].mean().round(1))  # gravity, along the forearm
    -1.0
    >>> sorted(set(windows.groups.tolist()))
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    """
    table = read_numbers("motion.csv.gz")  # 8 x 6 numbers, exercise, person
    return TokenDataset(
        name="motion",
        X=table[:, :-2].reshape(-1, 8, 6) / 1000,
        y=table[:, -2].copy(),
        target_names=EXERCISES,
        token_names=tuple(f"{k * SECONDS:.2f} s" for k in range(8)),
        channel_names=("ax", "ay", "az", "wx", "wy", "wz"),
        description=DESCRIPTION,
        groups=table[:, -1].copy(),
    )
