"""Programs in a pod."""

from __future__ import annotations

import os
import subprocess

import pytest

from oars import engines
from oars.client.pod_programs import driver_env, python, with_env
from tests.unit.places.clusters import cluster


def test_program_in_the_head_pod_finds_the_cluster() -> None:
    env = driver_env(cluster())
    assert env["DASK_SCHEDULER_ADDRESS"] == env["OARS_ADDRESS"] == "tls://demo-head:8786"
    assert env["DASK_DISTRIBUTED__COMM__TLS__CA_FILE"] == "/etc/oars/secrets/ca.pem"
    assert driver_env(cluster(engine="ray"))["RAY_ADDRESS"] == "demo-head:6379"
    assert not any(
        "$(" in value for engine in engines.BUILT_IN for value in driver_env(cluster(engine=engine)).values()
    )
    assert with_env(cluster(), {"A": "1 2"}, ["x", "y"]) == ["env", "A=1 2", "x", "y"]


@pytest.mark.parametrize(
    ("before", "after"), [("", "/etc/oars/files/driver"), ("/a:/b", "/etc/oars/files/driver:/a:/b")]
)
def test_modules_of_the_engine_precede_the_image_s_own(before: str, after: str) -> None:
    words = with_env(cluster(engine="mars"), {"A": "1 2"}, ["sh", "-c", 'echo "$PYTHONPATH $A"'])
    env = {"PATH": os.defpath, **({"PYTHONPATH": before} if before else {})}
    assert subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout == f"{after} 1 2\n"


@pytest.mark.parametrize("engine", engines.names())
def test_code_of_the_shell_compiles(engine: str) -> None:
    env = {"OARS_ENGINE": engine, "OARS_NAME": "demo", "OARS_ADDRESS": "a:1"}
    for interactive in (True, False):
        compile(python(env, interactive=interactive)[-1], "shell", "exec")
