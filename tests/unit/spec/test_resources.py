"""Parsing of quantities."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oars.spec import resources


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        ("1Gi", 2**30),
        ("512MB", 512 * 10**6),
        ("2g", 2 * 10**9),
        ("1.5Gi", 3 * 2**29),
        (" 64 Mi ", 2**26),
        (2**20, 2**20),
        ("1024Ti", 2**50),
    ],
)
def test_memory_is_parsed(written: object, amount: int) -> None:
    assert resources.memory(written) == amount


@pytest.mark.parametrize("written", ["", "Gi", "1Q", "-1Gi", "1", 0, -5, True, None, [], "2000Ti", "1e9", "1_000Mi"])
def test_invalid_memory_is_rejected(written: object) -> None:
    with pytest.raises(ValueError, match="memory"):
        resources.memory(written)


@pytest.mark.parametrize(("written", "amount"), [(2, 2.0), (0.5, 0.5), ("500m", 0.5), (" 4 ", 4.0), ("1.5", 1.5)])
def test_cpu_is_parsed(written: object, amount: float) -> None:
    assert resources.cpu(written) == amount


@pytest.mark.parametrize("written", [0, -1, "0m", "x", "", None, True, "nan", "inf", 5000, [1]])
def test_invalid_cpu_is_rejected(written: object) -> None:
    with pytest.raises(ValueError, match="processors"):
        resources.cpu(written)


@pytest.mark.parametrize(
    ("written", "seconds"), [(90, 90.0), ("90s", 90.0), ("2m", 120.0), ("1h30m", 5400.0), ("250ms", 0.25), ("0", 0.0)]
)
def test_duration_is_parsed(written: object, seconds: float) -> None:
    assert resources.duration(written) == seconds


@pytest.mark.parametrize("written", [-1, "-1s", "1w", "1h 30m", "", None, True, "nan", "2000d"])
def test_invalid_duration_is_rejected(written: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        resources.duration(written)


@pytest.mark.parametrize(
    "read", [resources.memory, resources.cache, resources.cpu, resources.duration, resources.limit]
)
@pytest.mark.parametrize("written", ["1" * 50_000, "1" + " " * 50_000 + "!", "1s" * 50_000, "1." * 50_000])
def test_long_text_is_rejected_at_once(read: Callable[[object], object], written: str) -> None:
    """The operator reads it in its event loop."""
    start = time.process_time()
    with pytest.raises(ValueError, match=r"a text of \d+ characters is no quantity; use at most 64") as caught:
        read(written)
    assert time.process_time() - start < 0.5
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("read", [resources.memory, resources.cpu, resources.duration])
def test_longest_text_is_read(read: Callable[[object], object]) -> None:
    unit = "Mi" if read is resources.memory else ""
    assert read("64" + " " * (resources.MAX_LENGTH - 2 - len(unit)) + unit) == read(f"64{unit}")


@given(st.integers(min_value=2**20, max_value=resources.MAX_MEMORY))
def test_shown_memory_is_close_and_can_be_parsed(amount: int) -> None:
    again = resources.memory(resources.show_memory(amount))
    assert abs(again - amount) <= amount * 0.05


@pytest.mark.parametrize(("written", "seconds"), [("30m", 1800.0), (0, 0.0), ("0s", 0.0), (1, 1.0)])
def test_limit_is_a_duration_or_none(written: object, seconds: float) -> None:
    assert resources.limit(written) == seconds


@pytest.mark.parametrize("written", ["0.5s", "500ms", -1, "soon", True])
def test_invalid_limit_is_rejected(written: object) -> None:
    with pytest.raises(ValueError, match=r"duration|too short"):
        resources.limit(written)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (1.4, "1s"), (60, "1m"), (90, "1m30s"), (5400, "1h30m"), (3601, "1h"), (90061, "1d1h"), (172800, "2d")],
)
def test_duration_is_shown_with_two_units(seconds: float, shown: str) -> None:
    assert resources.show_duration(seconds) == shown
