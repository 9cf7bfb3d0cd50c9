"""uv's output as errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from oars.base.errors import Denied, EnvironmentFailed, OarsError
from oars.envs.explain import explain

CACHE = Path("/cache/envs")


@pytest.mark.parametrize(
    ("output", "kind", "words"),
    [
        ("error: No solution found when resolving dependencies\n  cause: Because nosuch-x was not found in the package "
         "registry and you require nosuch-x, we can conclude …", EnvironmentFailed, "there is no package 'nosuch-x'"),
        ("  cause: Because there is no version of six==99 and you require six==99", EnvironmentFailed, "no six==99"),
        ("error: No solution found\n  cause: Because a==1 depends on b<2 and you require b>=2 …", EnvironmentFailed,
         "cannot be installed together"),
        ("error: Failed to fetch: https://index.example/simple/six/\n  cause: dns error", EnvironmentFailed,
         "package index cannot be reached"),
        ("error: Failed to parse: `bad name!!`", EnvironmentFailed, "'bad name!!' is not a package requirement"),
        ("error: failed\n  cause: No space left on device (os error 28)", EnvironmentFailed, "No space is left"),
        ("error: failed to create file\n  cause: Permission denied (os error 13)", Denied, "cannot be written"),
        ("  × Failed to build `pymars==0.10.0`\n  ├─▶ The build backend returned an error", EnvironmentFailed,
         "pymars==0.10.0 could not be built"),
        ("thread 'main' panicked", EnvironmentFailed, "uv failed"),
        ("", EnvironmentFailed, "uv failed"),
    ],
)  # fmt: skip
def test_uv_output_is_explained(output: str, kind: type[OarsError], words: str) -> None:
    error = explain("The toy environment", output.splitlines(), CACHE)
    assert type(error) is kind
    assert words in error.message and error.hint
    assert "\n" not in error.message


def test_details_start_at_the_error_and_are_shortened() -> None:
    lines = [
        "Using Python 3.11.7",
        "Resolved 3 packages in 1ms",
        " + six==1",
        "warning: slow",
        "error: this",
        *["x"] * 50,
        "because",
    ]
    assert explain("It", lines, CACHE).details == ("error: this", "x", "…", *["x"] * 4, "because")
