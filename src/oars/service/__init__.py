"""The operations that every front door (command line, web API) offers.

Service has the operations on clusters. Beside it: diagnostics of this machine, cached environments, plain manifests and
the installation of the operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oars.client.backend import ClusterHandle, Location, Progress, make_location
from oars.client.samples import GroupLoad, Sample
from oars.model import Cause
from oars.places.report import Report
from oars.plan.changes import Change
from oars.service.clusters import Applied, Dashboard, Execution, Listing, Outcome, Program, Service
from oars.service.logs import LogLine, LogRequest

if TYPE_CHECKING:  # load aiohttp and pydantic
    from oars.client.cluster import AsyncCluster as AsyncCluster
    from oars.kube.exec import ExecSession as ExecSession

__all__ = [
    "Applied",
    "Cause",
    "Change",
    "ClusterHandle",
    "Dashboard",
    "Execution",
    "GroupLoad",
    "Listing",
    "Location",
    "LogLine",
    "LogRequest",
    "Outcome",
    "Program",
    "Progress",
    "Report",
    "Sample",
    "Service",
    "make_location",
]
