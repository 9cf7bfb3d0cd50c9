"""Programs that run in a pod of a cluster: their environment, and Python with the client connected. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from oars import engines
from oars.model import Desired
from oars.places.kube.render.driver import driver_env
from oars.places.kube.render.values import DRIVER, FILES

__all__ = ["driver_env", "python", "with_env"]

_NO_CLIENT = "OARS_ADDRESS has the cluster's address; this engine has no client to connect here."
# Line editing and completion, which Python sets up by itself only if it starts without a program.
_EDITING = (
    "try:\n    import readline, rlcompleter\n    readline.parse_and_bind('tab: complete')\nexcept ImportError: pass"
)
_PREPEND = 'export PYTHONPATH="$0${PYTHONPATH:+:$PYTHONPATH}"; exec "$@"'
_READ_STDIN = "import sys; exec(compile(sys.stdin.read(), '<stdin>', 'exec'))"


def with_env(cluster: Desired, env: Mapping[str, str], command: list[str]) -> list[str]:
    """The command with these variables set, and with the driver's modules before those of the image's PYTHONPATH; the
    exec API cannot set any variable."""
    words = ["env", *(f"{name}={value}" for name, value in env.items()), *command]
    if not cluster.shape.driver_files:
        return words
    return ["sh", "-c", _PREPEND, f"{FILES}/{DRIVER}", *words]


def python(env: Mapping[str, str], *, interactive: bool) -> list[str]:
    """The command for a Python with the engine's client connected as `client`."""
    shell = engines.get(env["OARS_ENGINE"]).shell
    if not interactive:
        return ["python", "-c", f"{shell.connect}\n{_READ_STDIN}"]
    greeting = shell.greeting if shell.connect else _NO_CLIENT
    text = f"{env['OARS_NAME']}: {env['OARS_ENGINE']} at {env['OARS_ADDRESS']}. {greeting} Press Ctrl-D to exit."
    greet = f"import sys; print({text!r}, file=sys.stderr)"
    return ["python", "-q", "-i", "-c", f"{_EDITING}\n{shell.connect}\n{greet}"]
