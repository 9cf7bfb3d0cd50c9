"""The kinds of Oars' custom resources."""

from __future__ import annotations

from oars.kube.kinds import Kind, register

COMPUTE_JOB = register(Kind("oars.dev", "v1alpha1", "computejobs", "ComputeJob"))
COMPUTE_CLUSTER = register(Kind("oars.dev", "v1alpha1", "computeclusters", "ComputeCluster"))
