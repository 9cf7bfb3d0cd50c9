"""Where commands look for a cluster that was only named."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from oars.cli import lookup, ls
from oars.client import backends
from oars.client.backends import Where, is_configured
from oars.client.kubernetes import KubeBackend
from oars.kube import config


def test_in_a_pod_kubernetes_is_near(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(config, "SERVICE_ACCOUNT", tmp_path)
    environ = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert not is_configured(Where(), environ)
    (tmp_path / "token").write_text("secret")
    assert is_configured(Where(), environ)
    assert not is_configured(Where(), {"HOME": str(tmp_path)})


def test_whoever_names_a_cluster_of_kubernetes_means_it(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    assert is_configured(Where(namespace="team"), environ)
    assert is_configured(Where(), {**environ, "KUBECONFIG": "somewhere"})
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text("{}")
    assert is_configured(Where(), environ)


class Guarded(KubeBackend):
    """Of somebody who has to type a password first, which takes longer than any answer may."""

    def __init__(self, *_: object) -> None:
        self.seconds = 0.3

    async def log_in(self) -> None:
        await asyncio.sleep(self.seconds)

    async def names(self) -> list[str]:
        return ["demo"]

    async def namespaces(self) -> list[str]:
        return []

    async def close(self) -> None:
        """There is nothing to let go."""


def test_typing_a_password_is_part_of_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "kube_backend", Guarded)
    monkeypatch.setattr(lookup, "FIND_SECONDS", 0.1)
    monkeypatch.setattr(ls, "KUBERNETES_SECONDS", 0.1)
    where = Where("kubernetes")
    assert isinstance(asyncio.run(lookup.find("demo", where)), Guarded)
    heard: list[str] = []
    monkeypatch.setattr(ls, "say", heard.append)
    assert asyncio.run(ls._look_everywhere(where)) == [] and heard == []
