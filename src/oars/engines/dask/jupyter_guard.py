"""Makes the Jupyter server of `dask scheduler --jupyter` require the cluster's token, which Dask itself switches off:
everybody who reaches the dashboard's port could run code. A script in the engine's environment, loaded by
`dask scheduler --preload` before the scheduler makes the server.

Environment:

    OARS_TOKEN_FILE   the file with the token. Jupyter accepts it as /jupyter/lab?token=TOKEN
"""

from __future__ import annotations

import os
from typing import Any


def install(token: str) -> None:
    from jupyter_server.serverapp import ServerApp  # type: ignore[import-not-found]  # not in the tests' Python

    if not token:
        raise ValueError("the cluster's token is empty")
    original = ServerApp.initialize

    def initialize(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self.identity_provider.token = token

    ServerApp.initialize = initialize


if __name__ != "oars.engines.dask.jupyter_guard":  # not imported by the control plane or its tests
    with open(os.environ["OARS_TOKEN_FILE"]) as file:
        install(file.read().strip())
