"""Each engine in direct mode and with the operator, on real pods."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from lab.kube import Kube

from oars.client.sync import Cluster
from oars.testing.driver import DriverProgram
from tests.contract import test_engines as engines
from tests.e2e.contract import OARS, TIMEOUT, KubeContract, draining, settled, staying, until
from tests.passes import await_passes

pytestmark = [pytest.mark.timeout(900)]


class Dask(KubeContract):
    engine, image = engines.TestDask, "dask"

    def test_cluster_survives_a_containerd_restart(
        self, demo: Cluster, home: Kube, outage: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        """Not marked `long` here: the quickest engine stands for the others."""
        super().test_cluster_survives_a_containerd_restart(demo, home, outage)


class Ray(KubeContract):
    engine, image = engines.TestRay, "ray"


class Mars(KubeContract):
    def test_web_server_requires_the_token(self, demo: Cluster, home: Kube) -> None:
        """Programs in a pod send it by themselves, and the probes need none: the cluster is ready."""
        with pytest.raises(urllib.error.HTTPError, match="requires the cluster's token"):
            urllib.request.urlopen(f"{demo.address}/api/cluster/nodes", timeout=20)
        package = self.engine.tensor.removesuffix(".tensor")  # type: ignore[attr-defined]
        program = (
            f"import os, {package} as mars, {package}.tensor as mt\n"
            "mars.new_session(os.environ['OARS_ADDRESS'], default=True)\n"
            "print('result', mt.ones((3, 3)).sum().execute(show_progress=False).fetch())"
        )
        words = [OARS, "exec", "demo", "-n", home.namespace, "--", "python3", "-c", program]
        env = {**os.environ, "KUBECONFIG": str(home.kubeconfig)}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=180, check=False)
        assert "result 9.0" in done.stdout, done.stderr

    def test_browser_sees_the_page_through_the_proxy(self, demo: Cluster, home: Kube) -> None:
        words = [OARS, "dashboard", "demo", "-n", home.namespace, "--no-open"]
        env = {**os.environ, "KUBECONFIG": str(home.kubeconfig)}
        with subprocess.Popen(words, env=env, text=True, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with urllib.request.urlopen(f"{url}api/cluster/nodes?role=0", timeout=60) as reply:
                assert len(json.load(reply)["nodes"]) == 1
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0


class Xorbits(Mars):
    engine, image = engines.TestXorbits, "mars-xorbits"


class Pymars(Mars):
    engine, image = engines.TestPymars, "mars-pymars"


class TestDaskDirect(Dask):
    mode = "direct"

    def test_results_survive_the_removal_of_their_group(self, demo: Cluster, home: Kube, tmp_path: Path) -> None:
        self.outlive_group(demo, home, tmp_path)


class TestRayDirect(Ray):
    mode = "direct"
    more: ClassVar[dict[str, Any]] = {"ray": {"dashboard": True}}  # the other has none, and other probes

    def test_worker_with_an_object_stays_until_forced(self, demo: Cluster, home: Kube) -> None:
        """What Ray then makes of the reference is its own affair: it may compute the object again."""
        demo.scale(2)
        demo.wait(timeout=TIMEOUT)
        with DriverProgram(demo, self.program("hold")) as program:
            program.expect("held", 180)
            before = {pod["metadata"]["name"] for pod in staying(home, "worker")}
            demo.scale(1)
            cause = until(lambda: next((each for each in demo.why() if "still referenced" in each.message), None))
            assert draining(cause) and "--force" in cause.hint
            victim = cause.message.split()[0]
            assert victim in before
            await_passes(demo, 1)
            assert {pod["metadata"]["name"] for pod in staying(home, "worker")} == before
            demo.scale(1, force=True)
            until(lambda: settled(demo), 90)
            # Marked as going, it no longer counts, and is still there.
            until(lambda: {pod["metadata"]["name"] for pod in staying(home, "worker")} == before - {victim}, 90)


class TestXorbitsDirect(Xorbits):
    mode = "direct"


@pytest.mark.long
class TestPymarsDirect(Pymars):
    mode = "direct"


class TestDaskOperated(Dask):
    mode = "operator"

    def test_head_container_restart_replaces_the_workers(
        self, demo: Cluster, home: Kube, crash: Callable[[Any, str], None]
    ) -> None:
        """Not marked `long` here: the quickest engine stands for the others."""
        super().test_head_container_restart_replaces_the_workers(demo, home, crash)


class TestRayOperated(Ray):
    mode = "operator"


@pytest.mark.long
class TestXorbitsOperated(Xorbits):
    mode = "operator"


class TestPymarsOperated(Pymars):
    mode = "operator"

    @pytest.mark.long
    def test_results_survive_the_removal_of_their_group(self, demo: Cluster, home: Kube, tmp_path: Path) -> None:
        self.outlive_group(demo, home, tmp_path)
