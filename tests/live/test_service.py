"""The service without the command line: all that a web API would call."""

from __future__ import annotations

import asyncio
import os

import pytest

from oars.base.errors import NameInUse, NotFound
from oars.service import Location, LogRequest, Outcome, Service
from oars.spec.load import build
from oars.spec.status import Phase


def test_life_of_a_cluster_through_the_service() -> None:
    service = Service(os.environ, Location("local"))
    spec = build({"engine": "toy", "workers": 2}).spec

    async def life() -> None:
        progress: list[str] = []
        created = await service.create("demo", spec, timeout=60, progress=progress.append)
        assert (created.phase, created.ready) == (Phase.READY, 2) and progress
        with pytest.raises(NameInUse):
            await service.create("demo", spec, timeout=60)
        assert [status.name for status in (await service.list()).clusters] == ["demo"]
        assert (await service.get("demo")).causes == ()

        assert await service.diff("demo", spec) == []
        assert (await service.scale("demo", 1, timeout=60)).ready == 1
        assert [change.effect for change in await service.diff("demo", spec)] == ["added"]
        applied = await service.apply("demo", spec, timeout=60)
        assert (applied.outcome, applied.status.ready) == (Outcome.CHANGED, 2)
        assert [change.message for change in applied.changes] == ["The group 'default' changes from 1 to 2 workers."]
        applied = await service.apply("demo", spec, timeout=60)
        assert (applied.outcome, applied.changes, applied.status.ready) == (Outcome.UNCHANGED, [], 2)

        lines = [each async for each in service.logs("demo", LogRequest(member="worker-0", tail=5))]
        assert ("worker-0", "toy worker worker-0 starts") in [(each.member, each.line) for each in lines]
        async with service.exec("demo", ["true"]) as execution:
            assert execution.session is None and execution.program is not None
            assert execution.program.env["OARS_NAME"] == "demo" and not execution.program.needs_connection
            process = await asyncio.create_subprocess_exec(*execution.program.argv, env=execution.program.env)
            assert await process.wait() == 0
        async with service.forward_dashboard("demo") as dashboard:
            assert dashboard.url.startswith("http://127.0.0.1:") and not dashboard.forwarded

        phases: list[Phase] = []
        reported = asyncio.Event()

        async def watch() -> None:
            async for report in service.watch("demo"):
                phases.append(report.status.phase)
                reported.set()

        watching = asyncio.create_task(watch())
        following = asyncio.create_task(_follow(service))
        await reported.wait()
        errors = await service.stop(["demo", "missing"], 30)
        assert errors["demo"] is None and isinstance(errors["missing"], NotFound)
        await watching
        assert phases[0] is Phase.READY and phases[-1] in (Phase.STOPPING, Phase.STOPPED)
        assert any(line.startswith("toy head") for line in await following)
        assert (await service.list()).clusters == []

    asyncio.run(asyncio.wait_for(life(), 120))


def test_apply_creates_a_missing_cluster() -> None:
    service = Service(os.environ, Location("local"))
    spec = build({"engine": "toy", "workers": 1}).spec
    expected = ["Cluster 'applied' is new, with a head and workers: default 1."]
    announced: list[tuple[Outcome, list[str]]] = []

    async def life() -> None:
        assert [change.message for change in await service.diff("applied", spec)] == expected
        applied = await service.apply(
            "applied", spec, timeout=60,
            on_changes=lambda outcome, changes: announced.append((outcome, [change.message for change in changes])),
        )  # fmt: skip
        assert (applied.outcome, applied.status.ready) == (Outcome.CREATED, 1)
        assert announced == [(Outcome.CREATED, expected)]
        assert await service.diff("applied", spec) == []
        assert await service.stop(["applied"], 30) == {"applied": None}

    asyncio.run(asyncio.wait_for(life(), 120))


async def _follow(service: Service) -> list[str]:
    """Lines until the cluster is gone."""
    return [each.line async for each in service.logs("demo", LogRequest(follow=True))]
