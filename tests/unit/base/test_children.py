"""Children that end with the process that started them."""

from __future__ import annotations

import os
import select
import subprocess
import sys

STARTS_A_CHILD = """
import os, subprocess, sys
from oars.base.children import kill_with
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=0, preexec_fn=kill_with(os.getpid()))
print(child.pid, flush=True)
child.wait()
"""


def test_child_ends_with_a_killed_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTS_A_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        ended, _, _ = select.select([child], [], [], 20)
        os.close(child)
        assert ended == [child]


def test_child_of_a_parent_that_has_ended_already_is_killed() -> None:
    code = "from oars.base.children import kill_with; import os; kill_with(os.getppid() + 1)(); print('alive')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30)
    assert (ended.returncode, ended.stdout) == (-9, b"")
