"""`oars cp`: which path is remote."""

from __future__ import annotations

import pytest

from oars.cli.access import RemotePath, parse_remote


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("demo:/tmp/x", RemotePath("demo", "head", "/tmp/x")),
        ("demo:data.csv", RemotePath("demo", "head", "data.csv")),
        ("demo:worker-5d9-x2x:/a:b", RemotePath("demo", "worker-5d9-x2x", "/a:b")),
        ("./a:b", None),
        ("/a:b", None),
        ("data.csv", None),
        ("demo:", None),
    ],
)
def test_remote_path_has_a_cluster_before_the_colon(path: str, expected: RemotePath | None) -> None:
    assert parse_remote(path) == expected
