"""Kueue in the lab: its CRDs, and its own controller, from its Go module."""

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lab import health, pki, process
from lab.api import Api, Object
from lab.build import SOURCES, tool
from lab.cluster import Lab
from lab.errors import Ended, LabError
from lab.wait import until

SECONDS = 300.0
GROUP = "kueue.x-k8s.io"
VERSION = "v1beta2"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
_PORT, _HEALTH_PORT = 9443, 8081
# Where the controller looks for the certificate of its metrics: no option changes that.
_ETC, _CERTIFICATES = "etc", "kueue/metrics/certs"


@cache
def definitions() -> tuple[Object, ...]:
    """The CustomResourceDefinitions of the version in go/kueue/go.mod, with one API version of each kind, so that
    nothing has to convert objects."""
    folder = _module() / "config" / "components" / "crd" / "bases"
    found = [yaml.load(file.read_text(), Loader=yaml.CSafeLoader) for file in sorted(folder.glob("*.yaml"))]
    for each in found:
        versions = [version for version in each["spec"]["versions"] if version["name"] == VERSION]
        each["spec"]["versions"] = [version | {"storage": True} for version in versions]
    return tuple(found)


def serve(api: Api) -> None:
    """Create the definitions that are missing, and wait until all are served."""
    for each in definitions():
        if not api.exists(f"{DEFINITIONS}/{each['metadata']['name']}"):
            api.create(DEFINITIONS, each)
    paths = [f"/apis/{GROUP}/{VERSION}/{plural}" for plural in _plurals()]
    until("Kueue's kinds are served", lambda: all(api.raw("GET", path)[0] == 200 for path in paths))


def remove(api: Api) -> None:
    """Delete all definitions, and with them the objects."""
    for each in definitions():
        api.delete(f"{DEFINITIONS}/{each['metadata']['name']}")
    paths = [f"/apis/{GROUP}/{VERSION}/{plural}" for plural in _plurals()]
    until("Kueue's kinds are gone", lambda: all(api.raw("GET", path)[0] == 404 for path in paths))


@contextmanager
def controller(lab: Lab, **settings: Any) -> Iterator[None]:
    """Run Kueue's controller in the cage during the block, with its webhooks for its own kinds and for batch/v1 Jobs.
    Afterwards the objects of all its kinds are gone. settings: more fields of its configuration."""
    serve(lab.api)
    program = tool(lab.settings.cache, "kueue", lab.say)
    home = lab.dir / "kueue"
    _write_files(lab, home, settings)
    running = _start(lab, program, home)
    try:
        _await_ready(lab, running)
        for each in _webhooks(lab):
            lab.api.apply(_path_of(each), each)
        yield
    finally:
        for each in _webhooks(lab):
            lab.api.raw("DELETE", _path_of(each))
        running.kill()
        _clear(lab.api)


def _write_files(lab: Lab, home: Path, settings: dict[str, Any]) -> None:
    certificates = home / _ETC / _CERTIFICATES
    certificates.mkdir(parents=True, exist_ok=True)
    trust = pki.folder(lab.dir, lab.network)
    for name, source in (("tls.crt", "apiserver.crt"), ("tls.key", "apiserver.key")):
        (certificates / name).write_bytes((trust / source).read_bytes())
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{lab.network.node}:{_HEALTH_PORT}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": _PORT, "certDir": str(certificates)},
        # There is only one: an election would only delay it.
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["batch/job"]},
        "featureGates": {"VisibilityOnDemand": False},
        **settings,
    }
    (home / "config.yaml").write_text(yaml.safe_dump(configuration))


def _start(lab: Lab, program: Path, home: Path) -> process.Process:
    init = lab.init
    if not init:
        raise LabError("The lab is not up: run `python -m lab up`.")
    lab.settings.logs.mkdir(exist_ok=True)
    config: list[str | Path] = ["--kubeconfig", lab.settings.kubeconfig, "--config", home / "config.yaml"]
    # In a mount namespace of its own, so that its certificates are at the fixed path.
    mounted: list[str | Path] = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc && exec "$@"', home / _ETC]
    words = ["enter", str(init.pid), lab.settings.logs / "kueue.log", *mounted, program, *config, "--zap-log-level=2"]
    return process.caged(words, lab.dir / "pids" / "kueue")


def _await_ready(lab: Lab, running: process.Process) -> None:
    address = f"http://{lab.network.node}:{_HEALTH_PORT}/readyz"

    def ready() -> bool:
        if not running.alive:
            raise Ended(f"kueue exited: {lab.tail('kueue')}")
        return health.answers(address)

    until("kueue is ready", ready, 120)


def _webhooks(lab: Lab) -> list[Object]:
    """The webhook configurations of the module for Kueue's own kinds and for Jobs, called at the controller in the
    cage."""
    found = yaml.safe_load_all((_module() / "config/components/webhook/manifests.yaml").read_text())
    authority = base64.b64encode((pki.folder(lab.dir, lab.network) / "ca.crt").read_bytes()).decode()
    return [_webhook(each, authority) for each in found]


def _webhook(configuration: Object, authority: str) -> Object:
    kept = [each for each in configuration["webhooks"] if each["rules"][0]["apiGroups"][0] in (GROUP, "batch")]
    for each in kept:
        url = f"https://127.0.0.1:{_PORT}{each['clientConfig']['service']['path']}"
        each["clientConfig"] = {"url": url, "caBundle": authority}
    return {**configuration, "metadata": {"name": "kueue"}, "webhooks": kept}


def _path_of(configuration: Object) -> str:
    return f"{_WEBHOOKS}/{configuration['kind'].lower()}s/kueue"


def _clear(api: Api) -> None:
    """Delete all objects of Kueue. Their finalizers go first: the controller, which would remove them, has ended."""
    for plural in _plurals():
        for each in api.get(f"/apis/{GROUP}/{VERSION}/{plural}")["items"]:
            metadata = each["metadata"]
            where = f"namespaces/{metadata['namespace']}/" if "namespace" in metadata else ""
            path = f"/apis/{GROUP}/{VERSION}/{where}{plural}/{metadata['name']}"
            api.raw("PATCH", path, {"metadata": {"finalizers": None}}, "application/merge-patch+json")
            api.raw("DELETE", path)


def _plurals() -> list[str]:
    return [str(each["spec"]["names"]["plural"]) for each in definitions()]


def _module() -> Path:
    """The directory of the module, which Go downloads once and checks against go.sum."""
    argv = ["go", "mod", "download", "-json", "sigs.k8s.io/kueue"]
    env = os.environ | {"GOFLAGS": "-mod=mod", "GOWORK": "off"}
    try:
        done = subprocess.run(
            argv, cwd=SOURCES / "kueue", env=env, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except FileNotFoundError:
        raise LabError("Kueue's CRDs come from its Go module, and Go is not installed.") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"Kueue's Go module was not downloaded within {SECONDS:.0f} s.") from None
    found = json.loads(done.stdout) if done.stdout.strip().startswith("{") else {}
    if done.returncode or "Dir" not in found:
        raise LabError(f"Kueue's Go module could not be downloaded: {found.get('Error') or done.stderr}")
    return Path(found["Dir"])
