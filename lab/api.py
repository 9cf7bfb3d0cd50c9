"""A minimal synchronous Kubernetes client: JSON over HTTPS, one request per connection."""

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
    """The API server answered with an error, or not at all (status 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """Client of one API server."""

    def __init__(self, server: str, trust: ssl.SSLContext, token: str | None = None) -> None:
        self.server = server
        self.trust = trust
        self.token = token

    def get(self, path: str) -> Object:
        """GET an object or a list."""
        return self.request("GET", path)

    def create(self, path: str, body: Object) -> Object:
        """POST a new object."""
        return self.request("POST", path, body)

    def delete(self, path: str) -> Object:
        """DELETE an object; do not wait until it is gone."""
        return self.request("DELETE", path)

    def apply(self, path: str, body: Object) -> Object:
        """Server-side apply."""
        return self.request("PATCH", f"{path}?fieldManager=oars-lab&force=true", body, "application/apply-patch+yaml")

    def patch(self, path: str, body: Object) -> Object:
        """Merge patch."""
        return self.request("PATCH", path, body, "application/merge-patch+json")

    def exists(self, path: str) -> bool:
        """True if the object at this path exists."""
        try:
            self.get(path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def request(self, verb: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        """Send one request; raise ApiError for a status of 400 or higher."""
        status, text = self.raw(verb, path, body, kind)
        if status >= 400:
            raise ApiError(status, text)
        return json.loads(text) if text.startswith("{") else {"text": text}

    def raw(self, verb: str, path: str, body: Object | None = None, kind: str = "application/json") -> tuple[int, str]:
        """Send one request and return its status and body."""
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
        """True if a health path answers 200."""
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
    """Return a kubeconfig as JSON, which is valid YAML and needs no library."""
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
    """Return a client for a minified kubeconfig: one cluster, one user, certificates inline."""
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    if "exec" in user or "auth-provider" in user:
        raise LabError(
            "Kubeconfigs with exec or auth-provider plugins are not supported: use one with a token or a certificate."
        )
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
