"""Programs in a pod of a cluster: which pod, and the environment with which they find the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oars import engines
from oars.base.errors import NotFound
from oars.base.text import suggest
from oars.cli import terminal
from oars.kube.streams import execute
from oars.model import HEAD
from oars.places.kube import names
from oars.places.kube.render.describe import describe
from oars.places.kube.render.pod import Cluster
from oars.places.kube.render.values import SECRETS, head_values, secret_files
from oars.places.kube.state import observe
from oars.plan.fill import fill_mapping

if TYPE_CHECKING:
    from oars.client.kubernetes import KubeBackend

# What `oars shell` says for its user. Images hold the engines and nothing of ours, so these are the engines' own words.
CONNECT = {
    "dask": "from distributed import Client\nclient = Client()",
    "ray": "import ray\nclient = ray\nray.init(log_to_driver=True)",
    "mars": (
        "import os\n"
        "if os.environ['OARS_MARS_DISTRIBUTION'] == 'pymars':\n"
        "    from mars.deploy.oscar.session import new_session\n"
        "else:\n"
        "    import xorbits\n"
        "    from xorbits._mars.deploy.oscar.session import new_session\n"
        "client = new_session(os.environ['OARS_ADDRESS'], default=True)"
    ),
}
_GREETING = "import sys; print('{name}: {engine} at {address}; `client` is connected. Ctrl-D leaves.', file=sys.stderr)"
# Keys that move and complete, which Python prepares by itself only if it is given no program.
_EDITING = (
    "try:\n    import readline, rlcompleter\n    readline.parse_and_bind('tab: complete')\nexcept ImportError: pass"
)
_READ_STDIN = "import sys; exec(compile(sys.stdin.read(), '<stdin>', 'exec'))"


@dataclass(frozen=True)
class Spot:
    """A container; `is_own`: the one that makes the pod a member."""

    namespace: str
    pod: str
    container: str
    is_own: bool = True


async def spot_of(home: KubeBackend, name: str, member: str = HEAD, container: str | None = None) -> Spot:
    """Without a container it is the member's own."""
    pods = await home.pods(name)
    if member not in pods:
        if member == HEAD:
            raise NotFound(f"The cluster {name!r} has no head pod now.", f"`oars why {name}` says what it waits for.")
        meant = suggest(member, pods)
        raise NotFound(f"The cluster {name!r} has no member {member!r}.{meant}", f"It has: {', '.join(pods)}.")
    pod = pods[member]
    own = observe.role(pod).value
    if container is not None:
        check_container(container, observe.containers(pod))
    return Spot(home.namespace_of(name), pod["metadata"]["name"], container or own, container in (None, own))


def check_container(container: str, known: Iterable[str]) -> None:
    there = list(dict.fromkeys(known))
    if container not in there:
        hint = f"There are: {', '.join(there)}." if there else "There is no pod now."
        raise NotFound(f"There is no container {container!r}.{suggest(container, there)}", hint)


async def described(home: KubeBackend, name: str) -> Cluster:
    spec = await home.spec(name)
    return describe(name, home.namespace_of(name), spec, engines.get(spec.engine))


def driver_env(cluster: Cluster) -> dict[str, str]:
    """For a program in a pod of the cluster; secrets are named by their files."""
    shape = cluster.shape
    values = head_values(names.head(cluster.name), shape)
    values |= {f"secret.{name}": f"{SECRETS}/{name}" for name in secret_files(shape)}
    ends = fill_mapping(shape.endpoints, values)
    own = {"OARS_ENGINE": cluster.spec.engine, "OARS_ADDRESS": ends["client"], "OARS_NAME": cluster.name}
    return {**fill_mapping(shape.driver_env, values), **own, "OARS_DASHBOARD": ends.get("dashboard", "")}


def with_env(env: dict[str, str], command: Sequence[str]) -> list[str]:
    """The command, with the environment set before it: the API itself has no way to."""
    return ["env", *(f"{name}={value}" for name, value in env.items()), *command]


def python(env: dict[str, str], *, interactive: bool) -> list[str]:
    """Python with the engine's client connected as `client`."""
    engine = env["OARS_ENGINE"]
    begin = CONNECT.get(engine, "client = None")
    if not interactive:
        return ["python", "-c", f"{begin}\n{_READ_STDIN}"]
    facts = {"name": env["OARS_NAME"], "engine": engine, "address": env["OARS_ADDRESS"]}
    return ["python", "-q", "-i", "-c", f"{_EDITING}\n{begin}\n{_GREETING.format(**facts)}"]


async def run(
    home: KubeBackend, name: str, command: Sequence[str], member: str = HEAD, container: str | None = None
) -> int:
    """The command in a pod, or Python if there is none; its exit code. In a container that is not a member's own the
    command is run as it is: what finds the cluster is not there, and perhaps not even `env`."""
    spot = await spot_of(home, name, member, container)
    raw = terminal.is_terminal()
    words = list(command)
    if spot.is_own:
        env = driver_env(await described(home, name))
        words = with_env(env, command or python(env, interactive=raw))
    session = await execute(
        home.client, spot.namespace, spot.pod, words, container=spot.container, stdin=True, tty=raw
    )  # fmt: skip
    return await terminal.connect(session, raw=raw)
