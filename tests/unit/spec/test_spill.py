"""`cache` and `spill` of a worker group: what is accepted, and how errors read."""

from __future__ import annotations

from typing import Any

import pytest

from oars import AsyncCluster, Cluster
from oars.base.errors import SpecError
from oars.spec import resources
from oars.spec.cluster import WorkerGroup
from oars.spec.load import build, dump

GIB = 2**30


def group(**fields: Any) -> WorkerGroup:
    return build({"engine": "dask", "workers": [fields]}).spec.workers[0]


def error(**fields: Any) -> str:
    with pytest.raises(SpecError) as caught:
        group(**fields)
    return caught.value.message


@pytest.mark.parametrize(
    ("given", "stored", "size"),
    [("40%", "40%", 4 * GIB), ("12.50 %", "12.5%", GIB * 5 // 4), ("4Gi", 4 * GIB, 4 * GIB), (GIB, GIB, GIB)],
)
def test_cache_is_a_share_or_an_amount(given: Any, stored: Any, size: int) -> None:
    found = group(cache=given, memory="10Gi").cache
    assert found == stored
    assert found is not None and resources.cache_size(found, 10 * GIB) == size


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"cache": "0%"}, "'0%' is not between 1% and 90% of the memory; tasks need the rest"),
        ({"cache": "95%"}, "'95%' is not between 1% and 90% of the memory"),
        ({"cache": "much"}, "'much' is not an amount of memory; write it like 40%, 512Mi or 4Gi"),
        ({"cache": 0.4}, "0.4 is not between 1Mi and 1024Ti"),
        ({"cache": "4Gi", "memory": "2Gi"}, "cache is 4Gi, but it is a part of memory, which is 2Gi"),
        ({"spill": {"paths": ["scratch"]}}, "'scratch' is not an absolute path without"),
        ({"spill": {"paths": ["/a:/b"]}}, "'/a:/b' is not an absolute path without blanks, ':'"),
        ({"spill": {"paths": ["/a/../etc"]}}, "'/a/../etc' is not an absolute path"),
        ({"spill": {"paths": ["/"]}}, "'/' is not an absolute path"),
        ({"spill": {"paths": ["/a", "/a"]}}, "'/a' is there twice; remove one"),
        ({"spill": {"paths": [f"/{n}" for n in range(17)]}}, "there are 17 paths; the most is 16"),
        ({"spill": {"medium": "Fast SSD"}}, "'Fast SSD' is neither disk nor memory nor the name of a storage class"),
        ({"spill": {"medium": "memory"}}, "a volume of medium memory needs a size; set size"),
        ({"spill": {"medium": "fast-ssd"}}, "a volume of medium fast-ssd needs a size; set size"),
        ({"spill": {"paths": ["/a"], "medium": "memory"}}, "but paths are given; remove one of them"),
        ({"spill": {"medium": "memory", "size": "2Gi"}, "memory": "1Gi"}, "spill.size is 2Gi, but it is a part of"),
        ({"spill": {"path": "/a"}}, "is not a known field; did you mean 'paths'?"),
    ],
)
def test_errors_name_the_value_and_the_rule(fields: dict[str, Any], sentence: str) -> None:
    assert sentence in error(**fields)


def test_dumped_spec_is_readable_and_loads_again() -> None:
    spill = {"paths": ["/mnt/a", "/mnt/b"], "size": 10 * GIB}
    manifest = build({"engine": "ray", "workers": [{"memory": "8Gi", "cache": "2Gi", "spill": spill}]})
    (written,) = dump(manifest)["spec"]["workers"]
    assert written["cache"] == "2Gi" and written["spill"] == {"paths": ["/mnt/a", "/mnt/b"], "size": "10Gi"}
    assert build(dump(manifest)).spec == manifest.spec


def test_set_changes_cache_and_spill() -> None:
    sets = ("workers.default.cache=30%", "workers.default.spill.paths=[/a, /b]", "workers[0].spill.size=5Gi")
    (found,) = build({"engine": "dask"}, sets).spec.workers
    assert found.cache == "30%" and found.spill is not None
    assert found.spill.paths == ("/a", "/b") and found.spill.size == 5 * GIB


@pytest.mark.parametrize("spill", ["/a", ["/a"], {"paths": "/a"}, {"paths": ["/a"]}])
def test_python_keywords_apply_to_every_group(spill: Any) -> None:
    spec = build({"engine": "dask", "workers": [{"name": "a"}, {"name": "b"}]}).spec
    cluster = AsyncCluster(spec, cache="25%", spill=spill)
    found = [(group.cache, group.spill.paths if group.spill else ()) for group in cluster._spec.workers]
    assert found == [("25%", ("/a",))] * 2


def test_names_of_other_systems_are_recognized() -> None:
    with pytest.raises(TypeError, match=r"'worker_spill_paths'\. Did you mean 'spill'"):
        Cluster("mars", worker_spill_paths=["/a"])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'worker_cache_mem'\. Did you mean 'cache'"):
        Cluster("mars", worker_cache_mem="40%")  # type: ignore[call-arg]
