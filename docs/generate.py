"""The pages that are made from the program itself: `python docs/generate.py` writes them, `--check` only compares.

reference/spec.md   every field of the cluster's description, from the models
benchmarks.md       the tables, from bench/results/*.json
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from oars.spec import cluster, resources

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "bench/results"
NOTE = "<!-- Made by docs/generate.py: change what it reads, then run `make docs`. -->\n"

BLOCKS: tuple[tuple[str, type[cluster.Part]], ...] = (
    ("spec", cluster.ClusterSpec),
    ("spec.environment", cluster.Environment),
    ("spec.head", cluster.Head),
    ("spec.workers[]", cluster.WorkerGroup),
    ("spec.drain", cluster.DrainPolicy),
    ("spec.namespace", cluster.NamespaceBlock),
    ("spec.expose", cluster.Expose),
    ("spec.lifetime", cluster.Lifetime),
    ("spec.dask", cluster.DaskBlock),
    ("spec.ray", cluster.RayBlock),
    ("spec.mars", cluster.MarsBlock),
)
WORDS = {resources.memory: "memory", resources.cpu: "processors", resources.duration: "time"}
PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "anything"}

SPEC_HEAD = f"""{NOTE}
# The description of a cluster

One description for every engine. In a file it stands under `spec`:

```yaml
apiVersion: {cluster.API_VERSION}
kind: {cluster.KIND}
metadata: {{name: demo}}
spec:
  engine: dask
  workers: 3
```

`oars up -f cluster.yaml` and `Cluster.from_file("cluster.yaml")` read it. `--set path=value` changes one field: the
path starts below `spec`, the value is YAML. `--set workers.big.replicas=2` names a group, `--set workers[0].cpu=2`
counts.

A field that is not known is an error that names the line and the nearest right name. Names are camelCase in files;
Python's snake_case is taken too.

How amounts are written:

| kind | examples |
|---|---|
| memory | `512Mi`, `4Gi`, `2GB`, or bytes |
| processors | `2`, `0.5`, `500m` |
| time | `90`, `30s`, `2m`, `1h30m` |

A name has at most 53 lower-case letters, digits and `-`, and starts with a letter. A member that is given no memory
gets an equal share of four fifths of the machine, 4Gi at most; on Kubernetes a head gets 1Gi and a worker 2Gi.
"""

BENCH_HEAD = f"""{NOTE}
# How fast it is

Oars against what the engines' users have today: the same shape, the same environment, taking turns in one run;
medians. `make bench` measures and writes `bench/results/*.json`; this page is made from those files.

A ratio below 1 means that Oars is faster. The limit is what we hold ourselves to.
"""

PARTS = {
    "start": ("Start to ready, in seconds", "From the call until all workers are there; imports are not counted."),
    "executor": ("Empty tasks, in seconds", "The same tasks through `executor()` and through the engine's own calls."),
    "cli": ("What Oars itself costs", "The limits are processor seconds and megabytes, not ratios."),
    "kube_start": (
        "On Kubernetes: start to ready, in seconds",
        "From `kubectl apply` until all workers are there, real pods: a ComputeCluster against hand-written manifests.",
    ),
}
SCALE = "kube_scale.json"
SCALE_HEAD = """## On Kubernetes: many clusters at once

300 clusters of a head and three workers, created at once; the pods are played, all else is real, and both processors
are busy from the first to the last moment. So time is work: that of Kubernetes, and that of an operator.
"""
SCALE_ROWS = {
    "by_hand": "by hand: two Deployments and a Service each",
    "whole_by_hand": "by hand: all objects that Oars makes of a cluster",
    "ours": "Oars' operator, from ComputeClusters",
    "kuberay": "KubeRay's operator, from RayClusters",
}


def pages() -> dict[Path, str]:
    """Every generated page and its text."""
    measured = "\n".join([bench_page(read_results(RESULTS)), *scale_section(RESULTS / SCALE)])
    return {DOCS / "reference/spec.md": spec_page(), DOCS / "benchmarks.md": measured}


def spec_page() -> str:
    return "\n".join([SPEC_HEAD, *(block(path, model) for path, model in BLOCKS)])


def block(path: str, model: type[cluster.Part]) -> str:
    summary = (model.__doc__ or "").strip().splitlines()[0]
    head = (f"## {path}\n", f"{summary}\n", "| field | type | default | meaning |", "|---|---|---|---|")
    return "\n".join([*head, *(row(name, field) for name, field in model.model_fields.items()), ""])


def row(name: str, field: FieldInfo) -> str:
    return f"| `{field.alias or name}` | {kind(field)} | {default(field)} | {text(field)} |"


def kind(field: FieldInfo) -> str:
    return type_name(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)


def type_name(found: Any) -> str:
    """A type in words that people who write YAML understand."""
    origin, inner = get_origin(found), get_args(found)
    if origin is Annotated:
        words = [WORDS[function] for extra in inner[1:] if (function := getattr(extra, "func", None)) in WORDS]
        return words[0] if words else type_name(inner[0])
    if origin in (Union, UnionType):
        return " or ".join(type_name(each) for each in inner if each is not type(None))
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in inner)
    if origin is tuple:
        return f"list of {type_name(inner[0])}".replace("a block", "blocks")
    if origin is dict:
        return f"map of {type_name(inner[1])}"
    return PLAIN.get(found) or f"a block, [below](#{anchor(found)})"


def anchor(model: type) -> str:
    """As GitHub makes it from the heading of the model's block."""
    heading = next(path for path, known in BLOCKS if known is model)
    return "".join(letter for letter in heading.lower() if letter.isalnum() or letter in "-_ ").replace(" ", "-")


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default if field.default is not PydanticUndefined else None
    if field.default_factory is not None or value is None or value == ():
        return "–"
    if isinstance(value, tuple):
        return "one group of one"
    if isinstance(value, bool):
        return f"`{json.dumps(value)}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def text(field: FieldInfo) -> str:
    if field.description:
        return field.description.replace("|", "\\|")
    inner = getattr(field.annotation, "__doc__", None) or ""
    return inner.strip().splitlines()[0]


def read_results(directory: Path) -> list[Mapping[str, Any]]:
    """In the order of PARTS; what has not been measured is missing."""
    files = [directory / f"{part}.json" for part in PARTS]
    return [json.loads(path.read_text()) for path in files if path.exists()]


def bench_page(records: Sequence[Mapping[str, Any]]) -> str:
    if not records:
        return f"{BENCH_HEAD}\nNothing has been measured yet: run `make bench`.\n"
    return "\n".join([BENCH_HEAD, *("\n".join(bench_table(record)) for record in records)])


def bench_table(record: Mapping[str, Any]) -> Iterator[str]:
    title, meaning = PARTS[record["part"]]
    load = record.get("load", [0.0])[0]
    yield f"## {title}\n"
    yield f"{meaning}\n"
    yield f"Measured {record['when']} with Oars {record['oars']}, Python {record['python']}, {record['cores']} cores; "
    yield f"load at the end {load:.1f}.\n"
    yield "| what | ours | theirs | ratio | limit | |"
    yield "|---|---|---|---|---|---|"
    for each in record["rows"]:
        numbers = (number(each[name]) if name in each else "–" for name in ("ours", "theirs", "ratio", "limit"))
        yield f"| {each['name']} | {' | '.join(numbers)} | {'ok' if each['ok'] else 'missed'} |"
    yield ""


def scale_section(path: Path) -> Iterator[str]:
    """What bench/kube_scale.py measured, if it has."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    if "pair" in kept:
        yield SCALE_HEAD
        yield from pair_table(kept["pair"])
    if "growth" in kept:
        yield from growth_table(kept["growth"])


def pair_table(record: Mapping[str, Any]) -> Iterator[str]:
    result, limits = record["result"], record["result"]["limits"]
    first = median(result["by_hand"], "seconds")
    yield f"Measured {record['when']}, {len(result['ours'])} rounds in turns, {record['cores']} cores.\n"
    yield "| what | seconds | to the first | Kubernetes' processor seconds | the operator's | its MB |"
    yield "|---|---|---|---|---|---|"
    for name, words in SCALE_ROWS.items():
        seconds, *costs = (median(result[name], key) for key in ("seconds", "cpu_kubernetes", "cpu", "megabytes"))
        told = (number(value) if value else "–" for value in (seconds, seconds / first, *costs))
        yield f"| {words} | {' | '.join(told)} |"
    most = max(run["writes_at_rest"] for run in result["ours"])
    yield f"\nLimits for the third: {limits['ratio']:.2f} to the first and less than the fourth,"
    yield f"{limits['cpu']:.0f} s and {limits['megabytes']:.0f} MB, and no writes at rest (seen: {most:.0f}).\n"


def growth_table(record: Mapping[str, Any]) -> Iterator[str]:
    yield f"How it grows, measured {record['when']}, each number in a round of its own:\n"
    yield "| clusters | seconds | seconds a cluster | operator's processor seconds | operator's MB |"
    yield "|---|---|---|---|---|"
    for row in record["result"]:
        numbers = (row["seconds"], row["seconds"] / row["clusters"], row["cpu"], row["megabytes"])
        yield f"| {row['clusters']} | {' | '.join(map(number, numbers))} |"
    yield ""


def median(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    """Nothing where there is nothing to measure."""
    return float(statistics.median(run.get(key, 0.0) for run in runs))


def number(value: float) -> str:
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def main() -> int:
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        sys.stderr.writelines(f"{path} is not current: run `make docs`.\n" for path in stale)
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
