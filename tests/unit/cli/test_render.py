"""`oars render`: manifests for kubectl, with their Secret."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from oars.cli import errors
from oars.cli.main import call

FILE = """
apiVersion: oars.dev/v1alpha1
kind: ComputeCluster
metadata: {name: demo}
spec:
  engine: dask
  workers: [{name: a, replicas: 2}, {name: b, replicas: 0}]
"""


def rendered(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    """The documents, and stderr."""
    assert errors.guard(lambda: call(["render", *args])) == code
    shown = capsys.readouterr()
    return list(yaml.safe_load_all(shown.out)) if shown.out else [], shown.err


def kinds(objects: list[dict[str, Any]]) -> list[str]:
    return [obj["kind"] for obj in objects]


@pytest.fixture(autouse=True)
def no_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


class Secrets(ThreadingHTTPServer):
    """An API server that has one Secret, or none, or refuses."""

    status = 200
    found: dict[str, Any] | None = None
    paths: list[str]


class Handler(BaseHTTPRequestHandler):
    server: Secrets

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        code = self.server.status if self.server.found or self.server.status != 200 else 404
        body = json.dumps(self.server.found if code == 200 else {"kind": "Status", "code": code}).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Secrets]:
    with Secrets(("127.0.0.1", 0), Handler) as server:
        server.paths = []
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        entries = {
            "clusters": [{"name": "lab", "cluster": {"server": address}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "namespace": "team"}}],
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "lab", **entries}))
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield server
        server.shutdown()


def secret_in(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (obj for obj in objects if obj["kind"] == "Secret")
    return found


def test_secret_is_printed_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    objects, note = rendered(capsys, "--engine", "ray", "--workers", "3", "--image", "i:1", "--cpu", "0.5", "-n", "ns")
    assert note == "The output includes a new Secret, ray-oars. To keep it out of git, use `--secrets reference`.\n"
    assert set(secret_in(objects)["data"]) == {"token"}
    assert {obj["metadata"]["namespace"] for obj in objects} == {"ns"}
    head, workers = [obj for obj in objects if obj["kind"] == "Deployment"]
    assert (head["metadata"]["name"], workers["metadata"]["name"]) == ("ray-head", "ray-worker")
    assert workers["spec"]["replicas"] == 3
    assert workers["spec"]["template"]["spec"]["containers"][0]["image"] == "i:1"
    assert len(head["spec"]["template"]["spec"]["containers"]) == 1  # no helper
    assert rendered(capsys, "--engine", "dask", "-q")[1] == ""


def test_secret_is_left_out_on_request(capsys: pytest.CaptureFixture[str], api: Secrets) -> None:
    objects, note = rendered(capsys, "--engine", "ray", "--secrets", "reference")
    assert "Secret" not in kinds(objects)
    assert "need the Secret ray-oars" in note and "--secrets only" in note
    assert api.paths == []  # a file for git does not depend on a cluster


def test_secret_is_printed_alone_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    only, _ = rendered(capsys, "x", "--engine", "dask", "--secrets", "only")
    assert kinds(only) == ["Secret"]
    assert only[0]["metadata"]["name"] == "x-oars"
    assert set(only[0]["data"]) == {"ca.pem", "cert.pem", "key.pem"}
    together, _ = rendered(capsys, "--engine", "dask", "--create-namespace", "-n", "ns")
    assert kinds(together)[:2] == ["Namespace", "Secret"]
    plain = ("--engine", "dask", "--set", "dask.protocol=tcp")
    assert rendered(capsys, *plain, "--secrets", "only") == ([], "dask needs no Secret.\n")
    assert rendered(capsys, *plain)[1] == ""
    assert set(rendered(capsys, "--engine", "mars", "--secrets", "only")[0][0]["data"]) == {"token"}
    # Replacing the Secret of a running cluster would lock its members out.
    assert all(obj["immutable"] is True for obj in (*only, *together) if obj["kind"] == "Secret")


def test_existing_secret_is_kept(capsys: pytest.CaptureFixture[str], api: Secrets) -> None:
    """A second rendering must not rotate the certificates of a running cluster."""
    first = secret_in(rendered(capsys, "demo", "--engine", "dask")[0])
    assert api.paths == ["/api/v1/namespaces/team/secrets/demo-oars"]
    api.found = {"apiVersion": "v1", "kind": "Secret", "metadata": first["metadata"], "data": first["data"]}
    again, note = rendered(capsys, "demo", "--engine", "dask", "--workers", "5")
    assert secret_in(again) == first
    assert "the existing Secret, demo-oars" in note
    other, note = rendered(capsys, "demo", "--engine", "ray")  # needs a token, which that Secret does not have
    assert set(secret_in(other)["data"]) == {"token"} and "a new Secret" in note


def test_unknown_secret_is_new_with_a_note(capsys: pytest.CaptureFixture[str], api: Secrets) -> None:
    api.status = 403
    objects, note = rendered(capsys, "demo", "--engine", "dask")
    assert secret_in(objects)["immutable"] is True  # kubectl refuses to change the one that may be there
    assert "a new Secret" in note and "Whether there is one already is unknown" in note


def test_cluster_that_oars_tracks_is_not_overwritten(capsys: pytest.CaptureFixture[str], api: Secrets) -> None:
    owner = {"kind": "ConfigMap", "name": "demo-oars", "uid": "1"}
    api.found = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "demo-oars", "ownerReferences": [owner]}}
    objects, error = rendered(capsys, "demo", "--engine", "dask", code=1)
    assert objects == []
    assert "Cluster 'demo' in namespace 'team' of context 'lab' exists and is not a rendered one." in error


def test_objects_name_no_namespace_unless_one_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    objects, _ = rendered(capsys, "--engine", "mars")
    assert not any("namespace" in obj["metadata"] for obj in objects)
    team, _ = rendered(capsys, "mine", "--engine", "mars", "--set", "namespace.create=true", "-n", "team")
    assert {team[0]["metadata"]["name"], *(obj["metadata"]["namespace"] for obj in team[1:])} == {"team"}
    own, _ = rendered(capsys, "mine", "--engine", "mars", "--create-namespace")
    assert own[0]["metadata"]["name"] == "mine"
    assert {obj["metadata"]["namespace"] for obj in own[1:]} == {"mine"}


def test_manifests_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    objects, _ = rendered(capsys, "-f", str(path))
    found = {obj["metadata"]["name"]: obj["spec"]["replicas"] for obj in objects if obj["kind"] == "Deployment"}
    assert found == {"demo-head": 1, "demo-a": 2, "demo-b": 0}
    files = next(obj for obj in objects if obj["kind"] == "ConfigMap")
    assert files["data"]["head.oars_scheduler.py"].startswith('"""Adds GET')


def test_multi_line_strings_are_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.guard(lambda: call(["render", "--engine", "dask"])) == 0
    assert "head.oars_scheduler.py: |\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["B_", "--engine", "dask"], "'B_' is not a valid name"),
        (["--engine", "dask", "--set", "head.pod.foo=1"], "head.pod.foo: a PodTemplateSpec has only metadata and spec"),
        ([], "No engine is given."),
    ],
)
def test_invalid_spec_is_refused(args: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in rendered(capsys, *args, code=2)[1]


RENDER_MARS = ["render", "demo", "--engine", "mars", "--secrets", "reference"]  # a Secret differs each time


@pytest.mark.parametrize("command", [RENDER_MARS, ["rbac"], ["operator", "manifests"]])
def test_manifests_in_other_formats(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, str] = {}
    for output in ("yaml", "json", "name"):
        assert errors.guard(lambda output=output: call([*command, "-o", output])) == 0  # type: ignore[misc]
        found[output] = capsys.readouterr().out
    objects = list(yaml.safe_load_all(found["yaml"]))
    assert json.loads(found["json"]) == {"apiVersion": "v1", "kind": "List", "items": objects}
    assert found["name"].splitlines() == [f"{obj['kind'].lower()}/{obj['metadata']['name']}" for obj in objects]


def test_lifetime_of_rendered_manifests_is_refused_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    _, plain = rendered(capsys, "--engine", "dask")
    objects, noted = rendered(capsys, "--engine", "dask", "--set", "lifetime.idle=30m")
    assert objects and "lifetime has no effect on rendered manifests" in noted
    assert "lifetime" not in plain


def test_bounds_of_rendered_manifests_have_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    objects, noted = rendered(capsys, "--engine", "dask", "--set", "workers.default.max=3")
    assert objects and "min and max of group default have no effect on rendered manifests" in noted


def test_packages_that_no_image_has_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    objects, told = rendered(capsys, "--engine", "dask", "--package", "humanize", code=2)
    assert not objects and "environment.packages: on Kubernetes nobody installs packages" in told
    assert "Run `oars image build --engine dask --package humanize`, and set image." in told
    objects, told = rendered(capsys, "--engine", "dask", "--package", "humanize", "--image", "registry/dask:1")
    assert objects and "packages" not in told
