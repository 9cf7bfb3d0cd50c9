"""JSON merge patches."""

from __future__ import annotations

from typing import Any

import pytest

from oars.kube.merge_patch import merge_patch


@pytest.mark.parametrize(
    ("before", "after", "patch"),
    [
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1, "b": 2}, {"a": 3}, {"a": 3, "b": None}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 2}}, {"a": {"b": None}}),
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": 1}, "d": {"e": 1}}}, {"a": {"d": {"e": 1}}}),
        ({"a": [1, 2]}, {"a": [2]}, {"a": [2]}),
        ({"a": {"b": 1}}, {"a": [1]}, {"a": [1]}),
    ],
)
def test_merge_patch_removes_missing_keys(before: Any, after: Any, patch: Any) -> None:
    assert merge_patch(before, after) == patch
