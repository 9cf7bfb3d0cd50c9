"""Why clusters ended by themselves: what is stored, for how long, and what damaged entries do."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from oars.base import codec
from oars.kube.client import Client, Listing
from oars.kube.errors import ApiError
from oars.kube.kinds import Kind, Object
from oars.places.kube.state import endings
from oars.places.local.endings import read_gone, write_gone
from oars.plan.lifetime import KEEP_SECONDS
from oars.spec.status import Gone

NOW = 1_800_000_000.0


def ended(name: str, at: float, namespace: str = "") -> Gone:
    return Gone(name, "dask", "local", at, "Idle", "30m without work (lifetime.idle)", namespace=namespace)


def test_reasons_are_kept_for_a_day(tmp_path: Path) -> None:
    now = time.time()
    assert read_gone(tmp_path) == []
    for name, age in (("new", 10.0), ("first", 3600.0), ("old", KEEP_SECONDS + 1)):
        write_gone(tmp_path, "0123456789", ended(name, now - age))
        os.utime(tmp_path / f"gone/{name}-01234567.json", (now - age, now - age))
    assert [each.name for each in read_gone(tmp_path)] == ["first", "new"]
    write_gone(tmp_path, "fedcba9876", ended("new", now))  # another cluster of that name
    assert [each.name for each in read_gone(tmp_path)] == ["first", "new", "new"]
    assert not (tmp_path / "gone/old-01234567.json").exists()
    assert (tmp_path / "gone").stat().st_mode & 0o077 == 0


def test_damaged_reason_does_not_hide_others(tmp_path: Path) -> None:
    write_gone(tmp_path, "0123456789", ended("demo", time.time()))
    (tmp_path / "gone/broken-1.json").write_text("{")
    (tmp_path / "gone/strange-1.json").write_text('{"name": 1}')
    assert [each.name for each in read_gone(tmp_path)] == ["demo"]


def test_cluster_ends_even_if_its_reason_cannot_be_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "gone").write_text("not a directory")
    write_gone(tmp_path, "0123456789", ended("demo", time.time()))
    assert "reason not stored" in caplog.text


class Api:
    """ConfigMaps of an API server, by namespace."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.is_denied = False

    async def get(self, kind: Kind, name: str, namespace: str) -> Object:
        if self.is_denied:
            raise ApiError(403, {"message": "forbidden"})
        if namespace not in self.objects:
            raise ApiError(404, {"message": "not found"})
        return self.objects[namespace]

    async def list(self, kind: Kind, namespace: None, *, labels: str) -> Listing:
        return Listing(list(self.objects.values()), "1")

    async def create(self, obj: Object) -> Object:
        if self.is_denied or obj["metadata"]["namespace"] in self.objects:
            raise ApiError(403 if self.is_denied else 409, {"message": "refused"})
        self.objects[obj["metadata"]["namespace"]] = obj
        return obj

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object) -> Object:
        data = self.objects[namespace]["data"] | body["data"]
        self.objects[namespace]["data"] = {key: value for key, value in data.items() if value is not None}
        return self.objects[namespace]


def client(api: Api) -> Client:
    return cast(Client, api)


def names_in(api: Api, namespace: str | None, now: float = NOW) -> list[str]:
    return [each.name for each in asyncio.run(endings.read(client(api), namespace, now))]


def store(api: Api, uid: str, entry: Gone) -> None:
    asyncio.run(endings.store(client(api), uid, entry))


def test_namespace_keeps_its_reasons_for_a_day() -> None:
    api = Api()
    assert names_in(api, "lab") == []
    store(api, "1", ended("first", NOW - KEEP_SECONDS + 60, "lab"))
    store(api, "2", ended("second", NOW, "lab"))
    store(api, "3", ended("other", NOW + 5, "team"))
    assert names_in(api, "lab") == ["first", "second"]
    assert names_in(api, "lab", NOW + 120) == ["second"]
    assert names_in(api, None) == ["first", "second", "other"]
    store(api, "4", ended("third", NOW + 120, "lab"))
    assert list(api.objects["lab"]["data"]) == ["second.2", "third.4"]


def test_prepared_config_map_is_left_as_it_is() -> None:
    api = Api()
    asyncio.run(endings.ensure(client(api), "lab"))
    store(api, "1", ended("demo", NOW, "lab"))
    asyncio.run(endings.ensure(client(api), "lab"))
    assert names_in(api, "lab") == ["demo"]


def test_missing_rights_do_not_keep_a_cluster_from_ending() -> None:
    api = Api()
    api.is_denied = True
    asyncio.run(endings.ensure(client(api), "lab"))
    store(api, "1", ended("demo", NOW, "lab"))
    assert api.objects == {}
    with pytest.raises(ApiError):
        names_in(api, "lab")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"name": "x"}', '{"ended": "soon"}', "null"])
def test_entry_of_a_pod_that_lies_is_ignored_and_removed(text: str) -> None:
    good = json.dumps(codec.dump(ended("demo", NOW)))
    data: Mapping[str, Any] = {"demo.1": good, "bad.2": text}
    assert [each.name for each in endings.entries(data, "lab")] == ["demo"]
    assert endings.outdated(data, NOW) == ["bad.2"]


def test_entries_are_limited_in_number() -> None:
    data = {f"c{n}.{n}": json.dumps(codec.dump(ended(f"c{n}", NOW + n))) for n in range(endings.MAX_ENTRIES + 10)}
    removed = endings.outdated(data, NOW)
    assert removed == [f"c{n}.{n}" for n in range(11)]
