"""The operator is killed after every single write while it replaces a head."""

from __future__ import annotations

import asyncio

from tests.simulation.history import History, Replica, Violation


class ReplacedHead(History):
    """Every life of the operator renews its Lease and makes one more write."""

    def make_replicas(self) -> list[Replica]:
        return [Replica("operator-0", self)]

    async def _story(self) -> None:
        self._create("demo")
        await asyncio.sleep(90)
        (replica,) = self.replicas
        assert replica.process is not None
        replica.process.dies_after, replica.kills = replica.process.writes + 1, [2] * 30
        self._patch(self._clusters()[0], {"spec": {"env": {"VERSION": "7"}}})
        await asyncio.sleep(600)
        replica.kills.clear()
        await self._converge()
        (cluster,) = self._clusters()
        if (epoch := cluster["status"]["head"]["epoch"]) != 1:
            raise Violation(f"{epoch} heads were counted as lost")


def test_replacement_of_a_head_survives_a_kill_after_every_write() -> None:
    for seed in range(1, 6):
        ReplacedHead(seed).run()
