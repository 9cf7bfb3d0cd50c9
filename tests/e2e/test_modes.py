"""Each engine in direct mode and with the operator, on real pods."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tests.contract import test_engines as engines
from tests.e2e.contract import KubeContract

pytestmark = [pytest.mark.timeout(420)]


class Dask(KubeContract):
    engine, image = engines.TestDask, "dask"


class Ray(KubeContract):
    engine, image = engines.TestRay, "ray"


class Xorbits(KubeContract):
    engine, image = engines.TestXorbits, "mars-xorbits"


class Pymars(KubeContract):
    engine, image = engines.TestPymars, "mars-pymars"


class TestDaskDirect(Dask):
    mode = "direct"


class TestRayDirect(Ray):
    mode = "direct"
    more: ClassVar[dict[str, Any]] = {"ray": {"dashboard": True}}  # the other has none, and other probes


class TestXorbitsDirect(Xorbits):
    mode = "direct"


class TestPymarsDirect(Pymars):
    mode = "direct"


class TestDaskOperated(Dask):
    mode = "operator"


class TestRayOperated(Ray):
    mode = "operator"


class TestXorbitsOperated(Xorbits):
    mode = "operator"


class TestPymarsOperated(Pymars):
    mode = "operator"
