"""A cluster is the one that was made, not its name, on real processes."""

from __future__ import annotations

import pytest

from oars import Cluster
from oars.base.errors import Replaced
from oars.spec.status import Phase

pytestmark = pytest.mark.live


def test_a_cluster_that_got_the_name_of_an_older_one_is_a_strangers() -> None:
    """A program slept while somebody stopped its cluster and made another: it neither uses nor stops that one."""
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
