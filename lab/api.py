"""The few requests the lab itself makes of Kubernetes: JSON over HTTPS, one at a time."""

import base64
import http.client
import json
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lab.errors import LabError

Object = dict[str, Any]


class ApiError(LabError):
    """The apiserver said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """A client of one apiserver."""

    def __init__(self, server: str, trust: ssl.SSLContext, token: str | None = None) -> None:
        self.server = server
        self.trust = trust
        self.token = token

    def get(self, path: str) -> Object:
        """Read."""
        return self.request("GET", path)

    def create(self, path: str, body: Object) -> Object:
        """Create."""
        return self.request("POST", path, body)

    def delete(self, path: str) -> Object:
        """Delete, without waiting for it to be gone."""
        return self.request("DELETE", path)

    def apply(self, path: str, body: Object) -> Object:
        """Server-side apply: create, or make it so."""
        return self.request("PATCH", f"{path}?fieldManager=oars-lab&force=true", body, "application/apply-patch+yaml")

    def patch(self, path: str, body: Object) -> Object:
        """Merge patch."""
        return self.request("PATCH", path, body, "application/merge-patch+json")

    def exists(self, path: str) -> bool:
        """Whether there is something at this path."""
        try:
            self.get(path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def request(self, verb: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        """One request on a connection of its own."""
        status, text = self.raw(verb, path, body, kind)
        if status >= 400:
            raise ApiError(status, text)
        return json.loads(text) if text.startswith("{") else {"text": text}

    def raw(self, verb: str, path: str, body: Object | None = None, kind: str = "application/json") -> tuple[int, str]:
        """One request: status and text, whatever they are."""
        connection = self._connection()
        headers = {"Content-Type": kind, "User-Agent": "oars-lab"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            connection.request(verb, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(0, f"{self.server} does not answer: {error}") from error
        finally:
            connection.close()

    def healthy(self, path: str = "/readyz") -> bool:
        """Whether a health path answers 200 now."""
        try:
            return self.raw("GET", path)[0] == 200
        except ApiError:
            return False

    def _connection(self) -> http.client.HTTPConnection:
        url = urlsplit(self.server)
        if url.scheme == "http":
            return http.client.HTTPConnection(url.netloc, timeout=30)
        return http.client.HTTPSConnection(url.netloc, timeout=30, context=self.trust)


def kubeconfig(server: str, ca: Path, token: str) -> str:
    """A kubeconfig, as JSON: that is YAML too, and needs no library."""
    authority = base64.b64encode(ca.read_bytes()).decode()
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": server, "certificate-authority-data": authority}}],
        "users": [{"name": "lab", "user": {"token": token}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "current-context": "lab",
    }
    return json.dumps(content, indent=2) + "\n"


def connect(config: Mapping[str, Any]) -> Api:
    """A client from a kubeconfig's content, minified: one cluster, one user, data inline."""
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    if "exec" in user or "auth-provider" in user:
        raise LabError("A kubeconfig that runs a program to log in will not do: use one with a token or a certificate.")
    trust = ssl.create_default_context(cadata=_decoded(cluster.get("certificate-authority-data")))
    if cluster.get("insecure-skip-tls-verify"):
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    if "client-certificate-data" in user:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as pem:
            pem.write(f"{_decoded(user['client-certificate-data'])}\n{_decoded(user['client-key-data'])}")
            pem.flush()
            trust.load_cert_chain(pem.name)
    return Api(cluster["server"], trust, user.get("token"))


def _decoded(data: str | None) -> str | None:
    return base64.b64decode(data).decode() if data else None
