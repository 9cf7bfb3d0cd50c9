"""What the site needs besides the pages, called by MkDocs."""

from __future__ import annotations

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+(?:deploy|examples|tests|CONTRIBUTING|CHANGELOG)[^)]*)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to files of the repository outside docs/ lead nowhere in the site: name the file instead."""
    return OUTSIDE.sub(lambda link: f"{link[1]} (`{link[2].replace('../', '')}` in the repository)", markdown)
