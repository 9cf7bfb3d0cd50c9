"""`new_session` of `mars.session`, with the distribution of Mars that this Python uses: the one that is imported, else
pymars, else xorbits. Oars' other modules are not imported: this Python may lack what they need."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from oars.base.errors import EngineMissing
from oars.compat.mars import install


def new_session(address: str | None = None, **options: Any) -> Any:
    """A session with the web service at this address. `as_default()` makes mars.tensor and the others use it."""
    known = sorted(("mars", "xorbits"), key=lambda name: name not in sys.modules)
    package = next((name for name in known if name in sys.modules or find_spec(name) is not None), None)
    if package is None:
        raise EngineMissing("This Python has neither pymars nor xorbits.", install.hint("pymars", "xorbits"))
    if package == "mars":
        from mars.session import new_session as create
    else:
        from xorbits._mars.session import new_session as create
    return create(address, **options)
