"""What is stored of an original page, on small pages: its code and its names, but no sentence that could be read."""

from __future__ import annotations

import json

from tests.compat import blocks
from tests.compat.store import digests, stored

RST = """
Clusters
========

Create a cluster. It has *two* workers.

.. code-block:: python

    cluster = Cluster()

    cluster.scale(2)

Then look at it.
"""
MARKDOWN = """
# By hand

Start it by `mars-worker -e <address>` on each machine.

```yaml
kind: MarsJob
```

| Argument | Meaning |
| --- | --- |
| spill_dirs | where chunks go |
| size | is not an argument |
"""


def test_code_blocks_are_stored_as_they_are() -> None:
    page = stored({blocks.DASK_KUBERNETES_CLASSIC: RST})[blocks.DASK_KUBERNETES_CLASSIC]
    assert blocks.code_blocks(page) == [("python", "cluster = Cluster()\n\ncluster.scale(2)\n")]
    assert "Create" not in page and "look" not in page


def test_arguments_and_commands_of_a_page_are_stored() -> None:
    page = stored({blocks.MARS_BY_HAND: MARKDOWN})[blocks.MARS_BY_HAND]
    assert blocks.code_blocks(page) == [("yaml", "kind: MarsJob\n")]
    assert "| spill_dirs |" in page and "- `mars-worker -e <address>`" in page
    assert "chunks" not in page and "size" not in page


def test_sentences_are_stored_as_digests_of_their_openings() -> None:
    openings = json.loads(stored({blocks.DASK_KUBERNETES_CLASSIC: RST})[blocks.OPENINGS])
    create, workers, look = (each.split() for each in openings[blocks.DASK_KUBERNETES_CLASSIC])
    assert create == digests("Create a cluster.") and workers == digests("It has two workers")
    assert look[:2] == digests("Then look") and look != digests("Then look at them")
