"""The kept output of drivers."""

from __future__ import annotations

import asyncio
import base64
import gzip
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from oars.base.errors import OarsError
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import Kind, Object
from oars.operator.driver_logs import GIVE_UP_SECONDS, DriverLog, DriverLogs
from oars.places.kube.state.job_log import TEXT_BYTES

OWNER = {"kind": "ComputeJob", "name": "train", "uid": "u"}
METADATA = {"name": "train-1-log", "namespace": "team", "ownerReferences": [OWNER]}
LOG = DriverLog("u", 1, METADATA, 2**20)
POD = {"metadata": {"name": "p", "namespace": "team"}, "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 5}}


class Api:
    """A driver's output, ConfigMaps, and errors."""

    def __init__(self) -> None:
        self.lines = ["first"]
        self.ended = asyncio.Event()
        self.stored: dict[str, Object] = {}
        self.error: ApiError | None = None  # of reading
        self.refused: ApiError | None = None  # of writing

    async def logs(self, name: str, namespace: str, *, follow: bool, **options: Any) -> AsyncIterator[str]:
        if self.error is not None:
            raise self.error
        yield self.lines[0]
        if follow:
            await self.ended.wait()
        for line in self.lines[1:]:
            yield line

    async def get(self, kind: Kind, name: str, namespace: str) -> Object:
        if name not in self.stored:
            raise ApiError(404, {})
        return self.stored[name]

    async def create(self, obj: Object) -> Object:
        if self.refused is not None:
            raise self.refused
        if obj["metadata"]["name"] in self.stored:
            raise ApiError(409, {"reason": "AlreadyExists"})
        self.stored[obj["metadata"]["name"]] = obj
        return obj

    def text(self) -> str:
        return gzip.decompress(base64.b64decode(self.stored["train-1-log"]["binaryData"]["log.gz"])).decode()


def test_what_a_driver_prints_while_it_is_stopped_is_kept() -> None:
    async def stop() -> None:
        api = Api()
        logs = DriverLogs(cast(Client, api))
        logs.follow(LOG, POD)
        logs.follow(LOG, POD)  # the next pass
        assert not await logs.is_kept(LOG)
        await logs.keep(LOG, POD)  # waits for the follower
        assert not api.stored
        api.lines.append("goodbye")
        api.ended.set()
        async with asyncio.timeout(30):
            await asyncio.gather(*logs._followers.values())
        assert await logs.is_kept(LOG)
        assert api.text() == "first\ngoodbye\n"
        await logs.close()

    asyncio.run(stop())


@pytest.mark.parametrize(
    ("pod", "error", "text"),
    [
        (POD, None, "first\n"),
        (None, None, "(the output of this attempt is lost: its pod was deleted)\n"),
        (POD, ApiError(500, {}), "(the output of this attempt is lost: node n1 does not return it)\n"),
    ],
)
def test_output_or_why_it_is_lost(pod: Object | None, error: ApiError | None, text: str) -> None:
    async def keep() -> None:
        api = Api()
        api.error = error
        logs = DriverLogs(cast(Client, api))
        await logs.keep(LOG, pod)
        assert await logs.is_kept(LOG)
        assert api.text() == text
        other = DriverLogs(cast(Client, api))  # another operator
        await other.keep(LOG, None)
        assert api.text() == text

    asyncio.run(keep())


def test_log_that_cannot_be_stored_delays_the_verdict_for_a_while_only() -> None:
    async def keep() -> None:
        api, now = Api(), [0.0]
        api.refused = ApiError(403, {"message": "exceeded quota"})
        logs = DriverLogs(cast(Client, api), lambda: now[0])
        with pytest.raises(OarsError, match="quota"):
            await logs.keep(LOG, POD)
        assert not await logs.is_kept(LOG)
        now[0] = GIVE_UP_SECONDS + 1
        assert await logs.is_kept(LOG)

    asyncio.run(keep())


def test_log_of_an_earlier_job_of_the_name_is_not_taken_for_this_ones() -> None:
    """Kubernetes deletes it in the background, after the job."""

    async def keep() -> None:
        api = Api()
        await DriverLogs(cast(Client, api)).keep(LOG, POD)
        later = replace(LOG, job="v", metadata={**METADATA, "ownerReferences": [{**OWNER, "uid": "v"}]})
        logs = DriverLogs(cast(Client, api))
        assert await logs.is_kept(LOG) and not await logs.is_kept(later)
        with pytest.raises(OarsError, match="does not belong to this job"):
            await logs.keep(later, POD)
        del api.stored["train-1-log"]
        await logs.keep(later, POD)
        assert await logs.is_kept(later)

    asyncio.run(keep())


def test_config_map_of_somebody_else_is_not_taken_for_the_log() -> None:
    async def keep() -> None:
        api = Api()
        api.stored["train-1-log"] = {"metadata": {"ownerReferences": []}}
        with pytest.raises(OarsError, match="does not belong to this job"):
            await DriverLogs(cast(Client, api)).keep(LOG, POD)

    asyncio.run(keep())


def test_kept_log_is_bounded_whatever_the_job_asks_for() -> None:
    """The operator has the logs of many jobs in memory."""

    async def keep() -> str:
        api = Api()
        api.lines = ["a" * 999] * (2 * TEXT_BYTES // 1000)
        await DriverLogs(cast(Client, api)).keep(replace(LOG, keep=2**40), POD)
        return api.text()

    note, _, text = asyncio.run(keep()).partition("\n")
    assert note.startswith("(the beginning is not kept: logs.keep is 1.049e+06 MiB, and a ConfigMap has room for 8 MiB")
    assert TEXT_BYTES - 1000 <= len(text) <= TEXT_BYTES


@pytest.mark.parametrize("count", [9, 15, 500])
def test_log_says_that_its_beginning_is_missing(count: int) -> None:
    """Nothing is missing, or it is dropped while the output is stored, or also while it is read."""

    async def keep() -> list[str]:
        api = Api()
        api.lines = [f"line {number:4}" for number in range(count)]
        await DriverLogs(cast(Client, api)).keep(replace(LOG, keep=100), POD)
        return api.text().splitlines()

    lines = asyncio.run(keep())
    whole = [f"line {number:4}" for number in range(count)]
    if count == 9:
        assert lines == whole
    else:
        assert lines[0].startswith("(the beginning is not kept: logs.keep is ")
        assert lines[1:] == whole[-9:]
