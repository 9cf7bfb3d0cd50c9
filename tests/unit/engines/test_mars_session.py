"""The user's part of Mars, without Mars."""

from __future__ import annotations

import json

import pytest

from oars.base.errors import ClusterLost
from oars.engines.base import Access
from oars.engines.mars import session

ACCESS = Access("demo", "mars", "http://127.0.0.1:1", "", {})


@pytest.mark.parametrize(
    "reply",
    [{}, {"nodes": {}}, {"nodes": {"a": {"env": None}}}, {"nodes": {"a": {"env": {"mars_version": "1"}}}}, None],
)
def test_supervisor_that_does_not_list_itself_yet_is_not_up(reply: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor tries again."""
    monkeypatch.setattr(session, "_request", lambda *_: json.dumps(reply).encode())
    with pytest.raises(ClusterLost, match="did not open a session"):
        session._check_versions(ACCESS)
