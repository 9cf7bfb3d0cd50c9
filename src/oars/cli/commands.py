"""The table of commands and the help page. Imports nothing, so that `oars --help` is fast."""

from __future__ import annotations

from collections.abc import Mapping

# The function of each command, and its line in `oars --help`.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("oars.cli.run:run", "Create a cluster, run a script on it, stop it."),
    "up": ("oars.cli.clusters:up", "Create a cluster that keeps running."),
    "apply": ("oars.cli.clusters:apply", "Create a cluster, or change it to match a file."),
    "diff": ("oars.cli.clusters:diff", "Show what a file would change in a cluster."),
    "ls": ("oars.cli.clusters:ls", "List clusters."),
    "status": ("oars.cli.clusters:status", "Show one cluster and its members."),
    "scale": ("oars.cli.clusters:scale", "Change the number of workers."),
    "logs": ("oars.cli.access:logs", "Show or follow the logs of members."),
    "shell": ("oars.cli.access:shell", "Open Python with the client connected."),
    "exec": ("oars.cli.access:execute", "Run a command that can connect to the cluster."),
    "cp": ("oars.cli.access:cp", "Copy files to and from a cluster on Kubernetes."),
    "dashboard": ("oars.cli.access:dashboard", "Open the engine's dashboard."),
    "why": ("oars.cli.clusters:why", "Explain what is wrong and what to do."),
    "down": ("oars.cli.clusters:down", "Stop clusters and remove all their resources."),
    "render": ("oars.cli.kubernetes:render", "Print a cluster as Kubernetes manifests."),
    "operator": ("oars.cli.kubernetes:operator", "Install and run the Kubernetes operator."),
    "rbac": ("oars.cli.kubernetes:rbac", "Print the Kubernetes permissions that Oars needs."),
    "doctor": ("oars.cli.machine:doctor", "Check this machine."),
    "env": ("oars.cli.machine:env", "List, build and remove cached environments."),
    "config": ("oars.cli.machine:config", "Show the settings in effect."),
    "completion": ("oars.cli.machine:completion", "Print a shell completion script."),
    "version": ("oars.cli.machine:version", "Show the version."),
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
