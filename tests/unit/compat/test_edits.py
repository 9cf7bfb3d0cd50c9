"""What the tests change in the code of the documents is what the migration pages list, and sizes for the lab."""

from __future__ import annotations

import re

import pytest

from tests.compat import blocks, edits
from tests.compat.edits import Edit

LISTED = {
    blocks.MARS_KUBERNETES: [*edits.edits(edits.MARS, "import", "import, with xorbits", "in a pod")],
    blocks.DASK_KUBERNETES_CLASSIC: [*edits.edits(edits.DASK, "import", "image", "Role", "Role's name", image="i:1")],
}
SIZES = {blocks.MARS_KUBERNETES: edits.MARS_SIZES, blocks.DASK_KUBERNETES_CLASSIC: edits.DASK_SIZES}
# A number with its unit, and arguments for sizes that the page leaves out.
SIZE = re.compile(r", (?:scheduler|worker)_cpu=[\d.]+|[\d.]+(?:GB|G|g)?")


@pytest.mark.parametrize("document", LISTED)
def test_every_edit_is_of_code_of_the_document(document: str) -> None:
    code = "".join(code for _, code in blocks.page(document))
    changes: list[Edit] = [*SIZES[document], *LISTED[document]]
    assert [before for before, _ in changes if before not in code] == []


@pytest.mark.parametrize("document", SIZES)
def test_sizes_for_the_lab_change_numbers_only(document: str) -> None:
    for before, after in SIZES[document]:
        assert before != after and SIZE.sub("", before) == SIZE.sub("", after)


def test_code_differs_by_imports_images_and_sizes_only() -> None:
    """The lines of Dask's quickstart that are changed; all others are as on the page."""
    (first, second) = [code for language, code in blocks.page(blocks.DASK_KUBERNETES_CLASSIC) if language == "python"][
        :2
    ]
    changes = [*edits.DASK_SIZES, *edits.edits(edits.DASK, "import", "image", image="i:1")]
    assert edits.edited(second, changes) == second
    lines = zip(first.splitlines(), edits.edited(first, changes).splitlines(), strict=True)
    assert [after for before, after in lines if before != after] == [
        "from oars.compat.dask_kubernetes.classic import KubeCluster, make_pod_spec",
        "pod_spec = make_pod_spec(image='i:1',",
    ]


def test_options_that_the_page_about_hosts_adds() -> None:
    found = edits.options(edits.BY_HAND, FILE="/token")
    assert found == {"--token-file": "/token", "--distribution": "xorbits"}


def test_right_that_the_role_of_the_page_lacks() -> None:
    assert edits.added(edits.DASK, "Role, if").startswith('- {apiGroups: [""], resources: ["pods/portforward"]')
