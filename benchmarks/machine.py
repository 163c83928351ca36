"""Where figures were measured, and the physical limits there."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2"}  # the most first


def describe(versions: dict[str, str], command: str, before: dict[str, Any]) -> dict[str, Any]:
    """Machine, versions, command and dates; what was recorded `before` is kept beside."""
    old = before.get("environment", {})
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {_memory():.0f} GB",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {**old.get("versions", {}), **versions},
        "commands": list(dict.fromkeys([*old.get("commands", []), command])),
        "started": old.get("started", now),
        "finished": now,
    }


def _processor() -> str:
    """Its name, and which of the vector instructions that matter it has: names tell little."""
    info = Path("/proc/cpuinfo")
    words = dict(
        (part.strip() for part in line.split(":", 1))
        for line in (info.read_text().splitlines() if info.exists() else [])
        if ":" in line
    )
    name = words.get("model name") or platform.processor() or platform.machine()
    flags = words.get("flags", "").split()
    return name + next((f" ({known})" for flag, known in VECTORS.items() if flag in flags), "")


def _memory() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def speeds(size: int = 1500, megabytes: int = 200) -> dict[str, dict[str, float]]:
    """Measured peaks by threads: GFlop/s of products ``A'A``, GB/s of reading X in ``X'v``."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(size, size))
    B = A.astype(np.float32)
    X = rng.normal(size=(megabytes * 125, 1000))
    v = rng.normal(size=len(X))
    found = {}
    for threads in (1, 2):
        with threadpool_limits(threads):
            found[str(threads)] = {
                "syrk64 GFlop/s": size**3 / _best(lambda: A.T @ A) / 1e9,
                "syrk32 GFlop/s": size**3 / _best(lambda: B.T @ B) / 1e9,
                "read GB/s": X.nbytes / _best(lambda: X.T @ v) / 1e9,
            }
    return found


def _best(call: Callable[[], object], times: int = 3) -> float:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)
