"""Atomic file writes."""

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: after a crash it has its old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.rename(path)
