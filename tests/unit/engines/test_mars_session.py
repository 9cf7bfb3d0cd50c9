"""The user's half of Mars, as far as it needs no Mars."""

from __future__ import annotations

import json

import pytest

from oars.base.errors import ClusterLost
from oars.engines.base import Access
from oars.engines.mars import session

ACCESS = Access("demo", "mars", "http://127.0.0.1:1", "", {})


@pytest.mark.parametrize(
    "told", [{}, {"nodes": {}}, {"nodes": {"a": {"env": None}}}, {"nodes": {"a": {"env": {"mars_version": "1"}}}}, None]
)
def test_a_supervisor_that_does_not_know_itself_yet_is_not_there_yet(
    told: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for it to come back tries again."""
    monkeypatch.setattr(session, "_request", lambda *_: json.dumps(told).encode())
    with pytest.raises(ClusterLost, match="gives no session"):
        session._check_versions(ACCESS)
