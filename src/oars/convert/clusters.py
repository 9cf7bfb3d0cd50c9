"""The cluster spec that converters make, as data."""

from __future__ import annotations

from typing import Any


def filled(block: dict[str, Any]) -> dict[str, Any]:
    """The block without empty values."""
    return {name: value for name, value in block.items() if value is not None and value not in ("", {}, [])}


def cluster(
    engine: str, image: str | None, head: dict[str, Any], groups: list[dict[str, Any]], **blocks: Any
) -> dict[str, Any]:
    """A ClusterSpec for kubectl, too: the number of workers of the first group is that of the cluster."""
    workers = [dict(each) for each in groups]
    replicas = workers[0].pop("replicas") if workers else None
    start = filled({"engine": engine, "place": "kubernetes", "image": image, "head": filled(head)})
    count = {} if replicas is None else {"replicas": replicas}
    return {**start, **count, "workers": workers, **filled(blocks)}
