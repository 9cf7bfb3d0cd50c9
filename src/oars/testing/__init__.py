"""Contracts that any engine and any place must pass, as test classes to subclass; needs pytest.

from oars.testing import EngineContract

class TestToy(EngineContract):
    spec = {"engine": "toy"}
    …
"""

from oars.testing.engine import EngineContract
from oars.testing.executor import EngineExecutorContract, ExecutorContract
from oars.testing.leaks import assert_nothing_left, files, processes
from oars.testing.place import PlaceContract

__all__ = [
    "EngineContract",
    "EngineExecutorContract",
    "ExecutorContract",
    "PlaceContract",
    "assert_nothing_left",
    "files",
    "processes",
]
