"""Makes Mars' own client send the cluster's token, so that programs need nothing but `new_session(address)`. A script
in the driver's Python (stdlib only), named sitecustomize.py on its PYTHONPATH: Python imports it at each start.

    OARS_TOKEN_FILE     the file with the token
    OARS_MARS_ADDRESS   the web address of the cluster, the only one that gets the token
    OARS_MARS_ALIASES   further addresses of it, separated by spaces
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from typing import Any
from urllib.parse import urlsplit

CLIENTS = ("mars.services.web.core", "xorbits._mars.services.web.core")


class ClientFinder:
    """Finds the modules with Mars' web client, and changes the client when one is imported: importing Mars at each
    start of Python would take seconds."""

    @staticmethod
    def find_spec(name: str, path: Any, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name in CLIENTS else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            add_token(module.MarsWebAPIClientMixin)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def add_token(client: Any) -> None:
    request = client._request_url

    async def _request_url(self: Any, method: str, path: str, **kwargs: Any) -> Any:
        known = [os.environ.get("OARS_MARS_ADDRESS", ""), *os.environ.get("OARS_MARS_ALIASES", "").split()]
        if any(is_of_cluster(path, each) for each in known):
            kwargs["headers"] = {**(kwargs.get("headers") or {}), "Authorization": f"Bearer {read_token()}"}
        return await request(self, method, path, **kwargs)

    client._request_url = _request_url


def read_token() -> str:
    with open(os.environ["OARS_TOKEN_FILE"]) as file:
        return file.read().strip()


def is_of_cluster(url: str, address: str) -> bool:
    """True for the cluster's address, also if the name of its Service is written with a namespace."""
    given, known = urlsplit(url), urlsplit(address)
    host, own = given.hostname or "", known.hostname or ""
    return bool(own) and given.port == known.port and (host == own or host.startswith(f"{own}."))


def load_next() -> None:
    """Import the sitecustomize module that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, ClientFinder)
    load_next()
