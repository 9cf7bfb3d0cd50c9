"""Ray: calls whose worker crashed or ran out of memory do not hold up the results of others."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from oars.engines.base import Access
from oars.engines.executor import Batch, WorkerDied
from oars.engines.ray.connection import LOSS_SECONDS, RayConnection
from oars.engines.ray.link import Link


class Reference:
    """Ray's reference to a result, which calls back on Ray's thread."""

    def _on_completed(self, callback: Any) -> None:
        self.complete = callback


class Head:
    """A link to a head that stays alive."""

    def __init__(self) -> None:
        self.access, self.lost, self.on_loss = Access("demo", "ray", "", "", {}), threading.Event(), set[Any]()
        self.references: list[Reference] = []
        remote = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._send))
        self.ray = SimpleNamespace(
            remote=lambda **_: lambda function: remote, exceptions=SimpleNamespace(RayTaskError=KeyError)
        )

    def _send(self, *_: object) -> Reference:
        self.references.append(Reference())
        return self.references[-1]


@dataclass(eq=False)
class Sent:
    """A batch of one call, which notes its end."""

    ended: list[tuple[float, bytes | None, BaseException | None]]
    name: str = "f"
    arguments: tuple[bytes, float] = (b"", 0.0)

    def end(self, _: Any, data: bytes | None, error: BaseException | None) -> None:
        self.ended.append((time.monotonic(), data, error))


def test_crashed_calls_do_not_hold_up_results() -> None:
    head = Head()
    ended: list[tuple[float, bytes | None, BaseException | None]] = []
    connection = RayConnection(cast(Link, head), lambda: None)
    connection.send([cast(Batch, Sent(ended)) for _ in range(101)])
    began = time.monotonic()
    for reference in head.references[:100]:
        reference.complete(OSError("the worker was killed"))
    head.references[100].complete(b"result")
    assert any(data == b"result" for _, data, _ in ended), "it is delivered at once"
    deadline = began + 60
    while len(ended) < 101 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sum(isinstance(error, WorkerDied) for _, _, error in ended) == 100
    assert max(at for at, _, _ in ended) - began < 100 * LOSS_SECONDS / 4, "one after the other"
