"""Ways to damage a model file: bytes anywhere, and the JSON of its header."""

import json
import re
from collections.abc import Callable

import numpy as np

Random = np.random.Generator

HUGE = ("1e400", "-1e400", "NaN", "-1", "0", "9" * 18, "9" * 5000, "1e308", "true", "null", '"x"')
"""What numbers of a header turn into."""


def split(content: bytes) -> tuple[bytes, bytes]:
    """Header and arrays of a safetensors file."""
    stop = 8 + int.from_bytes(content[:8], "little")
    return content[8:stop], content[stop:]


def join(header: bytes, arrays: bytes) -> bytes:
    """A safetensors file of a header and arrays."""
    return len(header).to_bytes(8, "little") + header + arrays


def run(rng: Random, content: bytes, length: int) -> slice:
    """A place of `length` bytes."""
    start = int(rng.integers(len(content) - length))
    return slice(start, start + length)


# Bytes ----------------------------------------------------------------------------------------


def flip_bit(rng: Random, content: bytes) -> bytes:
    damaged = bytearray(content)
    damaged[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


def overwrite(rng: Random, content: bytes) -> bytes:
    damaged, place = bytearray(content), run(rng, content, 8)
    damaged[place] = rng.bytes(8)
    return bytes(damaged)


def overwrite_number(rng: Random, content: bytes) -> bytes:
    """One number of an array: another of its size, or none."""
    header, arrays = split(content)
    numbers = np.frombuffer(arrays, "<f8").copy()
    at = rng.integers(len(numbers))
    numbers[at] = rng.choice([np.nan, np.inf, 1e300, -numbers[at], numbers[at] + 1e-6])
    return join(header, numbers.tobytes())


def truncate(rng: Random, content: bytes) -> bytes:
    return content[: rng.integers(len(content))]


def extend(rng: Random, content: bytes) -> bytes:
    return content + rng.bytes(int(rng.integers(1, 64)))


def remove(rng: Random, content: bytes) -> bytes:
    place = run(rng, content, int(rng.integers(1, 65)))
    return content[: place.start] + content[place.stop :]


def move(rng: Random, content: bytes) -> bytes:
    damaged, a, b = bytearray(content), run(rng, content, 64), run(rng, content, 64)
    damaged[a], damaged[b] = content[b], content[a]
    return bytes(damaged)


def header_length(rng: Random, content: bytes) -> bytes:
    wrong = int(rng.choice([0, 1, 2**31, 2**40, 2**63, len(content), len(content) - 8]))
    return wrong.to_bytes(8, "little") + content[8:]


# The header -----------------------------------------------------------------------------------


def in_model(edit: Callable[[Random, str], str]) -> Callable[[Random, bytes], bytes]:
    """An edit of the description of the model, which is JSON in a string of the header's JSON."""

    def edited(rng: Random, content: bytes) -> bytes:
        header, arrays = split(content)
        found = json.loads(header)
        metadata = found["__metadata__"]
        metadata["model"] = edit(rng, metadata["model"])
        return join(json.dumps(found, separators=(",", ":")).encode(), arrays)

    return edited


def in_header(edit: Callable[[Random, str], str]) -> Callable[[Random, bytes], bytes]:
    """An edit of the header, the description left alone."""

    def edited(rng: Random, content: bytes) -> bytes:
        header, arrays = split(content)
        start, begin, rest = header.decode().partition(',"coef_":')
        start, begin, rest = (start, begin, rest) if begin else ("", "", start)
        return join((start + edit(rng, begin + rest)).encode(), arrays)

    return edited


def replace_one(rng: Random, text: str, pattern: str, new: Callable[[str], str]) -> str:
    """One of the matches of `pattern` replaced."""
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    match = found[rng.integers(len(found))]
    return text[: match.start()] + new(match[0]) + text[match.end() :]


def change_number(rng: Random, text: str) -> str:
    new = str(rng.choice(HUGE))
    return replace_one(rng, text, r"(?<=[ :,\[])-?\d[\d.e+-]*", lambda number: new)


def nudge_number(rng: Random, text: str) -> str:
    step = int(rng.choice([-1, 1, 8, 1000]))
    return replace_one(rng, text, r"(?<=[ :,\[])\d+(?=[],}])", lambda n: str(int(n) + step))


def swap_names(rng: Random, text: str) -> str:
    names = re.findall(r'"\w+"(?=:)', text)
    a, b = rng.choice(names, 2)
    return text.replace(a, '"?"').replace(b, a).replace('"?"', b)


def change_value(rng: Random, text: str) -> str:
    new = str(rng.choice(["[]", "{}", "null", "[[[]]]", "7", '"F32"', '"U9"', '"<U99999999"']))
    return replace_one(rng, text, r"(?<=: )[^,\[{]+(?=[,}])|\"F64\"", lambda value: new)


def change_text(rng: Random, text: str) -> str:
    other = str(rng.choice(re.findall(r'"\w+"', text)))
    return replace_one(rng, text, r'"[\w<|-]+"', lambda value: other)


def nest(rng: Random, text: str) -> str:
    depth = int(rng.choice([1, 5, 1000, 100_000]))
    bracket = rng.choice(["[]", "{}"])
    nested = "[" * depth + "]" * depth if bracket == "[]" else '{"a":' * depth + "1" + "}" * depth
    return replace_one(rng, text, r"(?<=[ :,\[])-?\d[\d.e+-]*", lambda number: nested)


def name_twice(rng: Random, text: str) -> str:
    return replace_one(rng, text, r'"\w+": ?[\d"]', lambda pair: f"{pair[:-1].rstrip()}1,{pair}")


def drop_text(rng: Random, text: str) -> str:
    return replace_one(rng, text, r'"\w+": ?[^,\[{}]+,', lambda pair: "")


TEXT_EDITS = (
    change_number, nudge_number, swap_names, change_value, change_text, nest, name_twice, drop_text
)  # fmt: skip
BYTE_EDITS = (
    flip_bit, overwrite, overwrite_number, truncate, extend, remove, move, header_length
)  # fmt: skip
MUTATIONS = (*BYTE_EDITS, *map(in_model, TEXT_EDITS), *map(in_header, TEXT_EDITS))


def mutate(rng: Random, content: bytes) -> bytes:
    """`content` with one mutation, which may happen to change nothing."""
    return MUTATIONS[rng.integers(len(MUTATIONS))](rng, content)
