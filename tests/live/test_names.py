"""A handle belongs to one cluster, not to a name."""

from __future__ import annotations

import pytest

from oars import Cluster
from oars.base.errors import Replaced
from oars.spec.status import Phase

pytestmark = pytest.mark.live


def test_handle_does_not_touch_a_newer_cluster_with_the_same_name() -> None:
    """Another process has replaced the program's cluster: the program neither uses nor stops the new one."""
    with Cluster("toy", workers=1, name="demo", timeout="60s") as mine:
        Cluster.attach("demo").stop()
        with Cluster("toy", workers=1, name="demo", timeout="60s") as theirs:
            with pytest.raises(Replaced):
                mine.status()
            with pytest.raises(Replaced):
                mine.scale(2)
            mine.close()
            status = theirs.status()
            assert (status.phase, [member.id for member in status.members]) == (Phase.READY, ["head", "worker-0"])
