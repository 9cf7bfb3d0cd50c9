"""The table of commands and the help page made from it. Needs no click, so that `oars --help` is there at once."""

from __future__ import annotations

from collections.abc import Mapping

# name → where the command is, and the line that `oars --help` shows for it
COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("oars.cli.run:run", "Start a cluster, run a script on it, stop it."),
    "up": ("oars.cli.up:up", "Start a cluster that stays."),
    "apply": ("oars.cli.apply:apply", "Make a cluster, or change it to what a file says."),
    "diff": ("oars.cli.diff:diff", "Say what a file would change in a cluster."),
    "ls": ("oars.cli.ls:ls", "List clusters."),
    "status": ("oars.cli.status:status", "Show one cluster and its members."),
    "scale": ("oars.cli.scale:scale", "Change the number of workers."),
    "logs": ("oars.cli.logs:logs", "Show or follow the logs of members."),
    "shell": ("oars.cli.shell:shell", "Open Python with the client connected."),
    "exec": ("oars.cli.shell:execute", "Run a command that finds the cluster."),
    "cp": ("oars.cli.cp:cp", "Copy files to and from a cluster on Kubernetes."),
    "dashboard": ("oars.cli.dashboard:dashboard", "Open the engine's own page."),
    "why": ("oars.cli.why:why", "Say what is wrong and what to do."),
    "down": ("oars.cli.down:down", "Stop clusters and remove all that is theirs."),
    "render": ("oars.cli.render:render", "Print a cluster as Kubernetes manifests."),
    "operator": ("oars.cli.operator:operator", "Install and run the Kubernetes operator."),
    "rbac": ("oars.cli.rbac:rbac", "Print the Kubernetes rights that Oars needs."),
    "doctor": ("oars.cli.doctor:doctor", "Check this machine."),
    "env": ("oars.cli.env:env", "List, build and remove cached environments."),
    "config": ("oars.cli.config:config", "Show the settings in effect."),
    "completion": ("oars.cli.completion:completion", "Print a completion script for your shell."),
    "version": ("oars.cli.version:version", "Show the version."),
}

HELP_WORDS = (["-h"], ["--help"])

_PAGE = """Usage: oars [OPTIONS] COMMAND [ARGS]...

  Dask, Ray and Mars clusters, wherever you are.

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
