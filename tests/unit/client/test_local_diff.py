"""What a new spec changes in a local cluster."""

from __future__ import annotations

from oars.client.local_diff import compare
from oars.plan.changes import Effect
from oars.spec.cluster import ClusterSpec
from tests.unit.service.test_clusters import spec


def effects(before: ClusterSpec, after: ClusterSpec) -> list[Effect]:
    return [change.effect for change in compare(before, after)]


def test_only_numbers_of_workers_can_change() -> None:
    before = spec(workers=[{"replicas": 2, "memory": "1Gi"}, {"name": "b"}], head={"memory": "2Gi"})
    assert effects(before, spec(workers=[{"replicas": 2}, {"name": "b"}])) == []
    after = spec(workers=[{"replicas": 1}, {"name": "b", "replicas": 4}])
    assert effects(before, after) == [Effect.DRAINED, Effect.ADDED]
    assert effects(before, spec(workers=[{"replicas": 2}])) == [Effect.REFUSED]
    assert effects(before, spec(workers=[{"replicas": 2, "memory": "2Gi"}, {"name": "b"}])) == [Effect.REFUSED]
    assert effects(before, spec(workers=[{"replicas": 2}, {"name": "b"}], image="x", place="kubernetes")) == []


def test_default_cpu_is_no_change() -> None:
    before = spec(workers=[{"replicas": 2, "cpu": 1}], head={"cpu": 1})
    assert effects(before, spec(workers=[{"replicas": 2}])) == []
    assert effects(before, spec(workers=[{"replicas": 2, "cpu": 2}])) == [Effect.REFUSED]


def test_fields_are_named_as_in_files() -> None:
    before, after = (spec(lifetime={"noClient": time}, head={"cpu": cpu}) for time, cpu in (("5m", 1), (0, 1)))
    (change,) = compare(before, after)
    assert (change.effect, change.lines) == (Effect.IN_PLACE, ("lifetime.noClient: 300 → 0",))
    (refused,) = compare(before, spec(head={"cpu": 2.5}))
    assert refused.lines == ("head.cpu: 1 → 2.5",)
