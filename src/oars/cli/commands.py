"""The table of commands and the help page. Imports nothing, so that `oars --help` is fast."""

from __future__ import annotations

from collections.abc import Mapping

# The function of each command, and its line in `oars --help`.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("oars.cli.run:run", "Create a cluster, run a script on it, stop it."),
    "up": ("oars.cli.up:up", "Create a cluster that keeps running."),
    "apply": ("oars.cli.apply:apply", "Create a cluster, or change it to match a file."),
    "diff": ("oars.cli.diff:diff", "Show what a file would change in a cluster."),
    "ls": ("oars.cli.ls:ls", "List clusters."),
    "status": ("oars.cli.status:status", "Show one cluster and its members."),
    "scale": ("oars.cli.scale:scale", "Change the number of workers."),
    "logs": ("oars.cli.logs:logs", "Show or follow the logs of members."),
    "shell": ("oars.cli.shell:shell", "Open Python with the client connected."),
    "exec": ("oars.cli.shell:execute", "Run a command that can connect to the cluster."),
    "cp": ("oars.cli.cp:cp", "Copy files to and from a cluster on Kubernetes."),
    "dashboard": ("oars.cli.dashboard:dashboard", "Open the engine's dashboard."),
    "why": ("oars.cli.why:why", "Explain what is wrong and what to do."),
    "down": ("oars.cli.down:down", "Stop clusters and remove all their resources."),
    "render": ("oars.cli.render:render", "Print a cluster as Kubernetes manifests."),
    "operator": ("oars.cli.operator:operator", "Install and run the Kubernetes operator."),
    "rbac": ("oars.cli.rbac:rbac", "Print the Kubernetes permissions that Oars needs."),
    "doctor": ("oars.cli.doctor:doctor", "Check this machine."),
    "env": ("oars.cli.env:env", "List, build and remove cached environments."),
    "config": ("oars.cli.config:config", "Show the settings in effect."),
    "completion": ("oars.cli.completion:completion", "Print a shell completion script."),
    "version": ("oars.cli.version:version", "Show the version."),
}

HELP_WORDS = (["-h"], ["--help"])

_PAGE = """Usage: oars [OPTIONS] COMMAND [ARGS]...

  Run Dask, Ray and Mars clusters.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
{commands}

  Examples:
    oars run train.py --engine ray --workers 4
    oars up demo --engine dask --workers 3
    oars status demo
    oars down demo"""


def help_page() -> str:
    width = max(map(len, COMMANDS))
    return _PAGE.format(commands="\n".join(f"  {name:{width}}  {line}" for name, (_, line) in COMMANDS.items()))
