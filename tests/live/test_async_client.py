"""AsyncCluster with real engines: connecting and awaiting results must not block the event loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from oars import Cluster
from oars.testing.driver import run_driver

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

# The longest time for which the event loop did nothing else. A busy machine blocks it too, but not for 4 s.
SOURCE = """
import asyncio, os, time
os.environ["OARS_STATE_DIR"] = {state!r}
from oars import AsyncCluster
blocked = 0.0
async def tick():
    global blocked
    while True:
        start = time.monotonic()
        await asyncio.sleep(0.02)
        blocked = max(blocked, time.monotonic() - start)
async def main():
    cluster = await AsyncCluster.attach("demo")
    ticker = asyncio.create_task(tick())
    client = await cluster.client()
    {body}
    loop, executor = asyncio.get_running_loop(), cluster.executor()
    await loop.run_in_executor(executor, time.sleep, 4)
    print("sum", await loop.run_in_executor(executor, sum, range(10)), flush=True)
    await asyncio.to_thread(executor.shutdown)
    await cluster.close()
    print("blocked", "no" if blocked < 3.5 else blocked, flush=True)
if __name__ == "__main__":
    asyncio.run(main())
"""

DASK = """
    assert client.asynchronous
    future = client.submit(time.sleep, 4)
    await future
    print("result", await client.submit(pow, 2, 3), await client.gather(client.map(abs, [-1, -2])), flush=True)
"""
RAY = """
    def slow(): time.sleep(4)
    await client.remote(slow).remote()
    print("result", await client.remote(lambda: 8).remote(), flush=True)
"""


@pytest.mark.parametrize(("engine", "body", "result"), [("dask", DASK, "result 8 [1, 2]"), ("ray", RAY, "result 8")])
def test_event_loop_is_not_blocked(engine: str, body: str, result: str, own_state: Path) -> None:
    with Cluster(engine, name="demo", workers=1, memory="1Gi") as cluster:
        lines = run_driver(cluster, SOURCE.format(state=str(own_state), body=body.strip()))
    assert {result, "sum 45", "blocked no"} <= set(lines), lines
