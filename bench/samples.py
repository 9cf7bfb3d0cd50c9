"""python -m bench.samples [NAME=DIRECTORY …]: convert samples of KubeRay and dask-kubernetes as `oars convert` does.

They are those of the releases below, from Go's module proxy and from PyPI, and those of other checkouts, such as
kuberay@feeaf72=DIRECTORY. What becomes of each goes to bench/results/samples.json. The exit code is 1 if the converter
raises anything but an error for people."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import time
import traceback
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.__main__ import RESULTS, say
from oars import __version__, engines
from oars.base.errors import OarsError
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.render.driver import Attempted, driver_job
from oars.plan.desired import build
from oars.service import foreign
from oars.service.manifests import render
from oars.spec import load
from oars.spec.cluster import KIND
from oars.spec.job import JOB_KIND
from oars.spec.load_job import build_job

KUBERAY = "github.com/ray-project/kuberay/ray-operator", "v1.6.1"  # newer ones are not on the proxy
DASK = "dask_kubernetes-2025.4.3.tar.gz", "5da98aa2565df3b3348f4df3871db8ff2b9511c6bad6aa789a974f6212a45516"
INDEX = "https://pypi.org/simple/dask-kubernetes/"
SECONDS = 300.0
OURS = re.compile(r"^kind: *[\"']?((?:Ray|Dask)[A-Z]\w+|MarsJob)\b", re.MULTILINE)
TEMPLATE = re.compile(r"^ *(?:name: *)?\{\{", re.MULTILINE)  # of Helm or a load test: not YAML yet
BLOCK = re.compile(r"^( *)\.\. code-block:: yaml\n\n((?:(?:\1 +.*)?\n)+)", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """What became of one manifest. outcome: converted, refused or crashed. unmet: how many fields are not honoured."""

    file: str
    kinds: tuple[str, ...]
    outcome: str
    unmet: int = 0
    reason: str = ""


def manifests(folder: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of every YAML file, and of every YAML block of a page, that has one of the kinds."""
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix in (".yaml", ".yml"):
            found = {name: path.read_text()}
        elif path.suffix == ".rst":
            blocks = (each[2] for each in BLOCK.finditer(path.read_text()))
            found = {f"{name}#{number}": textwrap.dedent(text).rstrip() for number, text in enumerate(blocks, 1)}
        else:
            continue
        yield from (each for each in found.items() if OURS.search(each[1]) and not TEMPLATE.search(each[1]))


def result(name: str, text: str) -> Result:
    """Convert a manifest, and make what Kubernetes would get of it."""
    kinds = tuple(OURS.findall(text))
    try:
        found = foreign.convert_text(text, "manifest")
        for data in found.ours(KIND):
            render(data["metadata"]["name"], load.build(data).spec, None, secrets="reference")
        for data in found.ours(JOB_KIND):
            spec = build_job({}, manifest=data).spec
            if spec.cluster is not None:
                cluster = build("x", spec.cluster, engines.get(spec.cluster.engine), DEFAULTS, namespace="n")
                driver_job(Attempted("x", {"uid": "u"}, 1, cluster), spec)
    except OarsError as error:
        return Result(name, kinds, "refused", reason=error.message)
    except Exception:  # noqa: BLE001 (to count it)
        return Result(name, kinds, "crashed", reason=traceback.format_exc(limit=-1).strip())
    return Result(name, kinds, "converted", len(found.unmet))


def results(folder: Path) -> list[Result]:
    return [result(name, text) for name, text in manifests(folder)]


def download(folder: Path) -> dict[str, Path]:
    """The samples of both releases, by name."""
    module, version = KUBERAY
    words = ["go", "mod", "download", "-json", f"{module}@{version}"]
    done = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True, timeout=SECONDS)
    file, digest = DASK
    with urllib.request.urlopen(INDEX, timeout=SECONDS) as reply:
        address = re.search(rf'href="([^"#]*/{re.escape(file)})', reply.read().decode())
    if address is None:
        raise SystemExit(f"{INDEX} does not list {file}.")
    with urllib.request.urlopen(address[1], timeout=SECONDS) as reply:
        content = reply.read()
    if hashlib.sha256(content).hexdigest() != digest:
        raise SystemExit(f"{address[1]} is not the file that was pinned.")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder, filter="data")
    samples = Path(json.loads(done.stdout)["Dir"], "config/samples")
    return {f"kuberay@{version}": samples, file.removesuffix(".tar.gz"): folder / file.removesuffix(".tar.gz")}


def report(sources: dict[str, Path]) -> int:
    """Convert the manifests of all sources, store and print what became of them. 1 if one crashed."""
    record: dict[str, object] = {"part": "samples", "when": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime())}
    rows, has_crashed = [], False
    for name, folder in sources.items():
        found = results(folder)
        counts = Counter(each.outcome for each in found)
        has_crashed |= bool(counts["crashed"])
        print(f"{name}: {len(found)} manifests: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
        for each in found:
            if each.outcome != "converted":
                say(f"  {each.outcome}: {each.file}: {each.reason}")
        others = [asdict(each) for each in found if each.outcome != "converted"]
        unmet = sum(each.unmet for each in found)
        rows.append({"source": name, "manifests": len(found), **counts, "fields not honoured": unmet, "others": others})
    (RESULTS / "samples.json").write_text(json.dumps({**record, "oars": __version__, "rows": rows}, indent=1) + "\n")
    return int(has_crashed)


def main() -> int:
    given = {name: Path(folder) for name, folder in (each.split("=", 1) for each in sys.argv[1:])}
    with tempfile.TemporaryDirectory() as folder:
        return report({**download(Path(folder)), **given})


if __name__ == "__main__":
    sys.exit(main())
