"""Programs of users in pods of their own."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from lab.api import Object
from lab.kube import Kube
from lab.wait import until

import oars


def driver_pod(kube: Kube, source: str) -> Object:
    """A pod of the account ann with Dask's image, in which Oars is installed."""
    folders = {"src": str(Path(oars.__file__).parents[1]), "site": sysconfig.get_paths()["purelib"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "driver"},
        "spec": {
            "serviceAccountName": "ann",
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "driver",
                    "image": kube.image("dask"),
                    "command": ["python", "-c", source],
                    "env": [{"name": "PYTHONPATH", "value": "/oars/src:/oars/site"}],
                    "volumeMounts": [{"name": name, "mountPath": f"/oars/{name}"} for name in folders],
                }
            ],
            "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in folders.items()],
        },
    }


def await_end(kube: Kube, pod: str) -> str:
    def ended() -> str:
        phase = str(kube.api.get(kube.path(f"pods/{pod}"))["status"].get("phase"))
        return phase if phase in ("Succeeded", "Failed") else ""

    phase = until("the program ended", ended, 240)
    log = kube.kubectl("logs", pod)
    assert phase == "Succeeded", log
    return log
