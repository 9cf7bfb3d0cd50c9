"""The table of commands and the help page. Imports nothing, so that `oars --help` is fast."""

from __future__ import annotations

from collections.abc import Mapping

# The function of each command, and its line in `oars --help`.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("oars.cli.run:run", "Create a cluster, run a script on it, stop it."),
    "submit": ("oars.cli.jobs:submit", "Run a program as a job that continues without this terminal."),
    "jobs": ("oars.cli.jobs:jobs", "List, follow, cancel and remove jobs."),
    "up": ("oars.cli.clusters:up", "Create a cluster that keeps running."),
    "apply": ("oars.cli.clusters:apply", "Create a cluster, or change it to match a file."),
    "diff": ("oars.cli.clusters:diff", "Show what a file would change in a cluster."),
    "ls": ("oars.cli.clusters:ls", "List clusters."),
    "status": ("oars.cli.clusters:status", "Show one cluster and its members."),
    "top": ("oars.cli.top:top", "Show what the worker groups need, have and use."),
    "scale": ("oars.cli.clusters:scale", "Change the number of workers."),
    "adapt": ("oars.cli.clusters:adapt", "Let the number of workers follow the load."),
    "drain": ("oars.cli.clusters:drain", "Move data off workers, and replace them."),
    "logs": ("oars.cli.access:logs", "Show or follow the logs of members."),
    "shell": ("oars.cli.access:shell", "Open Python with the client connected."),
    "exec": ("oars.cli.access:execute", "Run a command that can connect to the cluster."),
    "cp": ("oars.cli.access:cp", "Copy files to and from a cluster on Kubernetes."),
    "dashboard": ("oars.cli.access:dashboard", "Open the engine's dashboard."),
    "why": ("oars.cli.clusters:why", "Explain what is wrong and what to do."),
    "down": ("oars.cli.clusters:down", "Stop clusters and remove all their resources."),
    "head": ("oars.cli.hosts:head", "Run the head of a cluster over several machines."),
    "worker": ("oars.cli.hosts:worker", "Run workers on this machine for a head on another."),
    "service": ("oars.cli.hosts:service", "Print a systemd unit for a head or a worker."),
    "convert": ("oars.cli.convert:convert", "Print manifests of other projects as those of Oars."),
    "render": ("oars.cli.kubernetes:render", "Print a cluster as Kubernetes manifests."),
    "operator": ("oars.cli.kubernetes:operator", "Install and run the Kubernetes operator."),
    "rbac": ("oars.cli.kubernetes:rbac", "Print the Kubernetes permissions that Oars needs."),
    "doctor": ("oars.cli.machine:doctor", "Check this machine."),
    "env": ("oars.cli.machine:env", "List, build and remove cached environments."),
    "image": ("oars.cli.images:image", "Build container images for Kubernetes."),
    "config": ("oars.cli.machine:config", "Show the settings in effect."),
    "completion": ("oars.cli.machine:completion", "Print a shell completion script."),
    "version": ("oars.cli.machine:version", "Show the version."),
}

HELP_WORDS: tuple[list[str], ...] = ([], ["-h"], ["--help"])
COMPLETION_VARIABLE = "_OARS_COMPLETE"  # completion scripts set it and call `oars` without arguments

# Words of other tools, and the command that does the same.
MEANT: Mapping[str, str] = {
    **dict.fromkeys(("ps", "get", "list"), "ls"),
    **dict.fromkeys(("delete", "stop", "rm", "kill", "destroy", "terminate"), "down"),
    **dict.fromkeys(("describe", "info", "show"), "status"),
    **dict.fromkeys(("start", "create", "launch"), "up"),
    **dict.fromkeys(("attach", "ssh", "python", "ipython"), "shell"),
    "job": "jobs",
    **dict.fromkeys(("explain", "debug", "events"), "why"),
}

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
