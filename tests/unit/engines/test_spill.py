"""One memory figure, `cache` and `spill`: the settings that each engine makes of them. Starts nothing."""

from __future__ import annotations

from typing import Any

import pytest

from oars import engines
from oars.base.errors import SpecError
from oars.model import Group
from oars.spec.load import build

MIB, GIB = 2**20, 2**30


def worker(engine: str, group: dict[str, Any], **fields: Any) -> Group:
    spec = build({"engine": engine, "workers": [{"memory": "4Gi", **group}], **fields}).spec
    engines.get(engine).check(spec)
    return engines.get(engine).shape(spec).workers[0]


def option(group: Group, name: str) -> str | None:
    words = list(group.process.argv)
    if name in words:
        return words[words.index(name) + 1]
    return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), None)


class TestDask:
    @staticmethod
    def thresholds(group: Group) -> dict[str, str]:
        prefix = "DASK_DISTRIBUTED__WORKER__MEMORY__"
        return {name.removeprefix(prefix): value for name, value in group.process.env.items() if prefix in name}

    @pytest.mark.parametrize(
        ("cache", "target", "spill", "pause"),
        [("40%", "0.4", "0.5", "0.8"), ("1Gi", "0.25", "0.35", "0.8"), ("75%", "0.75", "0.85", "0.9"),
         ("90%", "0.9", "0.9", "0.94")],
    )  # fmt: skip
    def test_cache_moves_the_thresholds(self, cache: str, target: str, spill: str, pause: str) -> None:
        found = self.thresholds(worker("dask", {"cache": cache}))
        assert found == {"TARGET": target, "SPILL": spill, "PAUSE": pause}
        assert float(target) <= float(spill) < float(pause) < 0.95

    def test_without_cache_dask_uses_its_own(self) -> None:
        assert self.thresholds(worker("dask", {})) == {}

    def test_limit_is_below_the_size_of_the_volume(self) -> None:
        found = worker("dask", {"spill": {"size": "10Gi"}})
        assert self.thresholds(found) == {"MAX_SPILL": str(int(10 * GIB * 0.95))}
        assert option(found, "--local-directory") == "$(spill)" and option(found, "--memory-limit") == str(4 * GIB)

    def test_configuration_of_the_user_is_kept(self) -> None:
        config = {"distributed": {"worker": {"memory": {"target": 0.1, "max-spill": "1 GiB"}}}}
        found = worker("dask", {"cache": "40%", "spill": {"size": "10Gi"}}, dask={"config": config})
        assert self.thresholds(found) == {"SPILL": "0.5", "PAUSE": "0.8"}

    def test_groups_with_other_thresholds_share_a_fork_server(self) -> None:
        process = worker("dask", {"cache": "40%", "spill": {"size": "10Gi"}}).process
        plain = worker("dask", {}).process
        assert {name: process.env[name] for name in process.env if name not in process.late_env} == {
            name: plain.env[name] for name in plain.env if name not in plain.late_env
        }

    def test_thresholds_that_are_no_mapping_are_refused(self) -> None:
        with pytest.raises(SpecError, match=r"dask\.config\.distributed\.worker\.memory is not a mapping"):
            worker("dask", {}, dask={"config": {"distributed": {"worker": {"memory": 3}}}})


class TestRay:
    @pytest.mark.parametrize(
        ("cache", "store"), [("40%", int(4 * GIB * 0.4)), ("1Gi", GIB), (None, int(4 * GIB * 0.3))]
    )
    def test_cache_is_the_object_store(self, cache: str | None, store: int) -> None:
        found = worker("ray", {"cache": cache} if cache else {})
        assert option(found, "--object-store-memory") == str(store) == str(found.resources.shared_memory)
        assert option(found, "--memory") == str(4 * GIB - store), "tasks and objects share the memory"

    def test_each_raylet_spills_to_a_directory_of_its_own(self) -> None:
        assert option(worker("ray", {}), "--object-spilling-directory") == "$(spill)/ray-spill"

    def test_spilling_that_the_user_configures_is_kept(self) -> None:
        env = {"RAY_object_spilling_config": "{}"}
        assert option(worker("ray", {}, env=env), "--object-spilling-directory") is None
        assert option(worker("ray", {"env": env, "spill": {}}), "--object-spilling-directory") is not None

    @pytest.mark.parametrize(
        ("group", "fields", "sentence"),
        [
            ({"cache": "10Mi"}, {}, r"workers\[default\]\.cache is 10Mi; Ray's object store needs at least 80Mi"),
            ({"cache": "1%"}, {}, "needs at least 80Mi"),
            ({"cache": "1Gi"}, {"ray": {"objectStoreMemory": "1Gi"}}, "both set the object store"),
        ],
    )  # fmt: skip
    def test_impossible_stores_are_refused(self, group: Any, fields: Any, sentence: str) -> None:
        with pytest.raises(SpecError, match=sentence):
            worker("ray", group, **fields)


class TestMars:
    @pytest.mark.parametrize("distribution", ["xorbits", "pymars"])
    @pytest.mark.parametrize(("cache", "size"), [("25%", GIB), ("1Gi", GIB), (None, int(4 * GIB * 0.4))])
    def test_both_distributions_get_a_size_and_directories(
        self, cache: str | None, size: int, distribution: str
    ) -> None:
        found = worker("mars", {"cache": cache} if cache else {}, mars={"distribution": distribution})
        for prefix in ("MARS", "XORBITS"):
            assert found.process.env[f"{prefix}_CACHE_MEM_SIZE"] == str(size)
            assert found.process.env[f"{prefix}_SPILL_DIRS"] == "$(spill.all)"
        assert found.resources.shared_memory == (size if cache else 4 * GIB)
        assert option(found, "--mem-bytes") == str(4 * GIB)

    def test_size_of_the_disk_backend(self) -> None:
        text = worker("mars", {"spill": {"size": "10Gi"}}).process.files["config.yml"]
        assert f'"size": {10 * GIB}' in text
        assert '"disk"' not in worker("mars", {}).process.files["config.yml"]

    def test_other_storage_backends_are_left_alone(self) -> None:
        config = {"config": {"storage": {"backends": ["mmap"]}}}
        assert not any("SPILL_DIRS" in name for name in worker("mars", {}, mars=config).process.env)
        with pytest.raises(SpecError, match=r"need the storage backends of Oars"):
            worker("mars", {"cache": "40%"}, mars=config)

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [
            ("MARS_LOCK_FREE_FILEIO", r"this Mars has no lock-free I/O \(gone since 0\.7\)"),
            ("MARS_PLASMA_DIRS", "this Mars has no plasma store; results are in shared memory"),
            ("XORBITS_PLASMA_DIRS", "this Mars has no plasma store"),
            ("MARS_SPILL_DIRS", "Oars sets it for each worker"),
            ("XORBITS_CACHE_MEM_SIZE", "Oars sets it for each worker"),
        ],
    )
    @pytest.mark.parametrize("where", ["env", "head", "worker"])
    def test_variables_of_other_versions_get_one_sentence(self, name: str, sentence: str, where: str) -> None:
        env = {"env": {name: "1"}}
        fields = env if where == "env" else {"head": env} if where == "head" else {}
        with pytest.raises(SpecError, match=sentence):
            worker("mars", env if where == "worker" else {}, **fields)

    @pytest.mark.parametrize("storage", [{"plasma": {"store_memory": "20%"}}, {"backends": ["plasma"]}])
    def test_plasma_is_refused(self, storage: Any) -> None:
        with pytest.raises(SpecError, match=r"mars\.config\.storage\.plasma: this Mars has no plasma store"):
            worker("mars", {}, mars={"config": {"storage": storage}})
