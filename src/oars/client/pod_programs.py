"""Programs that run in a pod of a cluster: their environment, and Python with the client connected. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from oars import engines
from oars.model import Desired
from oars.places.kube import names
from oars.places.kube.render.values import SECRETS, head_values, secret_files
from oars.plan.fill import fill_mapping

_NO_CLIENT = "OARS_ADDRESS has the cluster's address; this engine has no client to connect here."
# Line editing and completion, which Python sets up by itself only if it starts without a program.
_EDITING = (
    "try:\n    import readline, rlcompleter\n    readline.parse_and_bind('tab: complete')\nexcept ImportError: pass"
)
_READ_STDIN = "import sys; exec(compile(sys.stdin.read(), '<stdin>', 'exec'))"


def driver_env(cluster: Desired) -> dict[str, str]:
    """The environment with which a program in a pod finds the cluster. Secrets are named by their files."""
    shape = cluster.shape
    values = head_values(names.head(cluster.name), shape)
    values |= {f"secret.{name}": f"{SECRETS}/{name}" for name in secret_files(shape)}
    endpoints = fill_mapping(shape.endpoints, values)
    return {
        **fill_mapping(shape.driver_env, values),
        "OARS_ENGINE": cluster.engine,
        "OARS_ADDRESS": endpoints["client"],
        "OARS_NAME": cluster.name,
        "OARS_DASHBOARD": endpoints.get("dashboard", ""),
    }


def with_env(env: Mapping[str, str], command: list[str]) -> list[str]:
    """The command with these variables set; the exec API cannot set any."""
    return ["env", *(f"{name}={value}" for name, value in env.items()), *command]


def python(env: Mapping[str, str], *, interactive: bool) -> list[str]:
    """The command for a Python with the engine's client connected as `client`."""
    shell = engines.get(env["OARS_ENGINE"]).shell
    if not interactive:
        return ["python", "-c", f"{shell.connect}\n{_READ_STDIN}"]
    greeting = shell.greeting if shell.connect else _NO_CLIENT
    text = f"{env['OARS_NAME']}: {env['OARS_ENGINE']} at {env['OARS_ADDRESS']}. {greeting} Press Ctrl-D to exit."
    greet = f"import sys; print({text!r}, file=sys.stderr)"
    return ["python", "-q", "-i", "-c", f"{_EDITING}\n{shell.connect}\n{greet}"]
