"""The `dask` block of a spec."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from oars.spec.cluster import Part


class DaskOptions(Part):
    """Options of Dask."""

    protocol: Literal["tls", "tcp"] = Field(default="tls", description="tls: encrypted, one certificate per cluster.")
    dashboard_auth: Literal["token", "none"] = Field(
        default="none", description="token: the dashboard requires the cluster's token, which `oars dashboard` sends."
    )
    jupyter: bool = Field(
        default=False,
        description="Start a Jupyter server in the scheduler, at /jupyter/lab of the dashboard. It requires the "
        "cluster's token. The image or the environment needs jupyterlab.",
    )
    config: dict[str, Any] = Field(default_factory=dict, description="Dask configuration, as in dask.yaml.")
