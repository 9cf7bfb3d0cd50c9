"""Where a job of a file runs."""

from __future__ import annotations

import pytest

from oars.base.errors import UsageError
from oars.service import Location
from oars.service.jobs import JobService, from_text

JOB = """
apiVersion: oars.dev/v1alpha1
kind: ComputeJob
metadata: {{name: demo{namespace}}}
spec:
  entrypoint: ["true"]
  cluster: {{name: other}}
"""


@pytest.mark.parametrize(
    ("given", "namespace", "expected"),
    [
        (Location(), "", Location()),
        (Location(), "lab", Location("kubernetes", namespace="lab")),
        (Location("local"), "lab", Location("local")),
        (Location("kubernetes", "c", "lab", "k"), "lab", Location("kubernetes", "c", "lab", "k")),
        (Location("kubernetes", namespace="n"), "", Location("kubernetes", namespace="n")),
    ],
)
def test_namespace_of_the_file_selects_kubernetes(given: Location, namespace: str, expected: Location) -> None:
    manifest = from_text(JOB.format(namespace=f", namespace: {namespace}" if namespace else ""), "job.yaml", {})
    assert JobService({}, given).at(manifest).location == expected


def test_two_namespaces_are_refused() -> None:
    manifest = from_text(JOB.format(namespace=", namespace: lab"), "job.yaml", {})
    with pytest.raises(UsageError, match="namespace 'lab', but --namespace is 'other'"):
        JobService({}, Location(namespace="other")).at(manifest)
