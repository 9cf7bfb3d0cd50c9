"""Runs the shell lines and Python blocks of the documentation as a reader, and compares what they print with the page.

How a page is read:
- Every line that begins with `$ ` in a `console` block is run, in the order of the page, in one directory.
- The lines below it are its output. They must appear in the output, in this order; other lines may stand between them.
  What differs from run to run (ports, times, names of pods) is compared by its form only. `…` stands for any text.
- A line without output below it needs a row in RESULTS: what it must print.
- EFFECTS has a shell line for what a command must have done besides; it runs after the command and must succeed.
- A `python` or `yaml` block is a file if the paragraph before it names one with that ending and ends with a colon.
- Any other `python` block is a program of its own, which is run where it stands, as if the page had the line
  `$ python PAGE-NUMBER.py` there: `how-to-jobs-1.py` is the first one of docs/how-to/jobs.md. One with `await` outside
  a function is for IPython.
- CANNOT_RUN lists the lines that no test can run, with the reason.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 300
NO_EDITS: Mapping[str, str] = {}

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w-]+\.(py|yaml))`")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_LANGUAGES = {"py": "python", "yaml": "yaml"}

# Parts of an output that differ from run to run.
_VARIABLE = (
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}",  # a time in a log
    r"127\.0\.0\.1:\d+",
    r"\d+\.\d s",
    r"(?<=\s)(?:\d+[hms]){1,2}(?=\s|$)",  # an age
    r"(?<=-)[0-9a-f]{8,10}-[a-z0-9]{5}\b",  # of a pod
    r"(?<=-job-)\w{5}(?:-\w{5})?\b",  # of a Job or its pod
)
_PARTS = re.compile("|".join(f"({each})" for each in (*_VARIABLE, "…", r"\s+")))

# What Ray's page says that its example program prints: "repeated output for 10 iterations and then 'Success!'"
_ITERATIONS = (part for number in range(10) for part in (rf"Iteration {number}\s", r"Counter\(\{"))
TEN_ITERATIONS = r"[\s\S]*?".join((*_ITERATIONS, "Success!"))

# What a command prints that the page shows without output: a pattern for the command, one for its output.
RESULTS: tuple[tuple[str, str], ...] = (
    (r"(OARS_DEBUG=1 )?oars up ", r"Phase: +Ready[\s\S]*Workers: +\d/\d ready"),
    (r"oars head .*--daemon", r"join\.token"),
    (r"oars worker .*--daemon", r"(?m)^one$"),
    (r"oars service ", r"ExecStart=\S+oars (head|worker) --"),
    (r"oars scale \S+ (\d)\b", r"Workers: +\1/\1 ready"),
    (r"oars adapt ", r"Phase: +Ready"),
    (r"oars drain ", r"Phase: +Ready"),
    (r"oars ls --gone", r"^No cluster ended by itself within the last day on this machine\.$"),
    (r"oars ls", r"(?m)^NAME [\s\S]*^demo .*Ready"),
    (r"oars status .*-o json", r'"phase": "Ready"'),
    (r"oars status demo; oars why demo;", r"Phase: +Ready[\s\S]*Nothing is wrong[\s\S]*\[head\][\s\S]*is stopped"),
    (r"oars status ", r"Phase: +Ready[\s\S]*worker-\S+ +Ready"),
    (r"oars down --all", r"is stopped\.|^$"),
    (r"oars down", r"(?m)^\w+ is stopped\.$"),
    (r"oars logs demo .*-c oars", r"^$"),  # the helper has nothing to say
    (r"oars logs demo .*-f", r"\[head\] .*Scheduler at:"),
    (r"oars logs demo worker-0", r"Registered to:"),
    (r"oars logs ", r"\[head\] .*Scheduler at:"),
    (r"oars why ", r"demo is Ready, \d of \d workers ready\."),
    (r"oars shell ", r"the client sees \d workers"),
    (r"oars exec (demo|dask) -- python", r"trained on \d workers"),
    (r"oars run .*inner.py", r"2000x2000 of 2000"),
    (r"oars run .*--epochs 3", r"trained on 1 workers \['--epochs', '3'\]"),
    (r"oars run .* -- --workers 8", r"on 1 workers \['--workers', '8'\]"),
    (r"oars run .*--workers (\d)", r"trained on \1 workers \[\]"),
    (r"oars run ", r"trained on \d workers \[\]"),
    (r"oars submit .*--epochs 3", r"trained on 2 workers \['--epochs', '3'\]"),
    (r"oars submit .*--detach", r"(?m)^train +(Queued|Starting|Running|Succeeded)"),
    (r"oars submit -f nightly.yaml", r"(?m)^report +Queued"),
    (r"oars jobs (suspend|resume) ", r"(?m)^report +(Queued|Suspended)"),
    (r"oars submit ", r"trained on \d workers \[\]"),
    (r"oars jobs (wait|status) ", r"Succeeded"),
    (r"oars jobs rm ", r"removed"),
    (r"oars doctor", r"(?m)^ok +python"),
    (r"oars env ls", r"(?m)^KEY [\s\S]*^dask-"),
    (r"oars env rm", r"dask-\w+ is removed|Removed"),
    (r"oars exec .*print\(Client\(\)\)", r"<Client: .*processes=\d"),
    (r"oars exec .*df -h", r"Mounted on[\s\S]*/dev/shm"),
    (r"oars cp ", r"^$|copying"),
    (r"oars dashboard ", r"http://127\.0\.0\.1:\d+/status"),
    (r"oars image build .*-t (\S+)", r"(?m)^registry.example.org/ray:1$"),
    (r"oars apply ", r"head replaced: [\s\S]*Phase: +Ready"),
    (r"oars operator install && kubectl", r"oars-system[\s\S]*computecluster\S+ created"),
    (r"oars operator install", r"Namespace oars-system is ready|The operator runs in namespace oars-system"),
    (r"oars operator status", r"clusters +\d"),
    (r"oars rbac .*kubectl apply", r"role\S+ created[\s\S]*rolebinding\S+ created"),
    (r"oars render .*only \| kubectl apply", r"^[\s\S]*secret/demo-oars created$"),
    (r"oars render .*> ", r"Secret"),
    (r"oars render .*--workers 5 .*kubectl apply", r"secret/demo-oars unchanged[\s\S]*demo-worker configured"),
    (r"oars render .*kubectl apply", r"secret/\w+-oars created[\s\S]*deployment.apps/\w+-worker created"),
    (r"oars render .*kubectl delete", r'secret "demo-oars" deleted[\s\S]*"demo-worker" deleted'),
    (r"kubectl .*get computeclusters", r"demo +dask +Ready"),
    (r"kubectl scale", r"scaled"),
    (r"kubectl (-n ray )?autoscale", r"autoscaled"),
    (r"kubectl (-n ray )?delete", r"deleted"),
    (r"kubectl -n ray cp", r"^$"),
    (r"kubectl -n ray exec .*ipython", r"Success!"),
    (r"kubectl -n ray (exec|logs)|python example.py", TEN_ITERATIONS),
    (r"kubectl -n ray create configmap", r"configmap/example created"),
    (r"kubectl apply -f demo.yaml", r"deployment.apps/demo-worker created"),
    (r"kubectl apply -f ray-cluster.yaml", r"deployment.apps/ray-worker created"),
    (r"kubectl create -f mars-test-demo.yaml", r"marsjob.training.kubedl.io/mars-test-demo created"),
    (r"kubectl apply -f cluster.yaml", r"computecluster.oars.dev/\S+ (created|configured)"),
    (r"kill ", r"^$"),
    (r"eval .*completion bash", r"^$"),
    (r"oars completion fish", r"^$"),
)


EFFECTS: tuple[tuple[str, str], ...] = (
    (r"(?:.*; )?oars down ([a-z]+)( -n \w+)?", r"(oars status \1\2 2>&1 || true) | grep 'There is no cluster '"),
    (r"oars down --all", r'test -z "$(oars ls -o name)"'),
    (r"oars cp (\S+) demo:(\S+)", r"oars exec demo -n team -- cat \2 | diff - \1"),
    (r"oars cp demo:\S+:out \./out", r'test "$(cat out)" = 1'),
)

# What a program that prints nothing must print.
_QUIET = tuple(
    (rf"python {name}\.py", r"^$")
    for name in ("how-to-add-an-engine-[1-4]", "reference-python-[15]", "decisions-0003-fork-server-1")
)
PROGRAMS: tuple[tuple[str, str], ...] = (
    *_QUIET,
    (r"python README-1.py", r"^45\n\['A', 'B', 'C'\]\nhttp://127\.0\.0\.1:\d+/\S* Ready$"),
    (r"python engines-(dask|mars)-1.py", r"50005000$"),
    (r"python engines-ray-1.py", r"\[0, 1, 4, 9\]\n50005000$"),
    (r"python how-to-jobs-1.py", r"trained on 2 workers \[\]\n0$"),
    (r"python how-to-packages-1.py", r"(?m)^/\S+/dask-\w+/bin/python\S*$"),
    (r"python how-to-run-a-script-1.py", r"\['A', 'B', 'C'\]"),
    (r"python (how-to-k\S+|reference-python-2).py", r"(?m)^45$"),
    (r"i?python reference-python-[34].i?py", r"(?m)^3$"),
)


def blocks(page: str, language: str) -> list[str]:
    return [text for found, text in _BLOCK.findall((ROOT / page).read_text()) if found == language]


# What is typed into a command that reads standard input.
_IPYTHON = f"{blocks('docs/how-to/ray-by-kubectl.md', 'ipython')[0]}print('Success!')\n"
TYPED = {
    r"kubectl .*exec -it .*-- ipython": _IPYTHON,
    r"kubectl .*exec -it .*# there: ipython": f"cat > typed << 'END'\n{_IPYTHON}END\nipython < typed\n",
    r"kubectl .*exec -it": "python example.py\n",
    r"oars shell": "print('the client sees', len(client.scheduler_info(n_workers=-1)['workers']), 'workers')\n",
}
# Commands that run until Ctrl-C; it is pressed when the result has been seen.
ENDLESS = r"oars logs .*-f\b|oars dashboard"
# Commands that are repeated until they print what the page shows, as `kubectl apply` does not wait for pods.
REPEATED = r"kubectl (-n \w+ )?(get|exec|cp|logs)\b"

CANNOT_RUN: Mapping[str, str] = {
    "pip install 'oars[all]'": "Oars is not published; `make setup` installs the checkout with the same extras",
    "make demo": "tests/live/test_examples.py runs the program behind it",
    "make test": "it would run itself",
    "make bench": "takes an hour on an idle machine",
    "make setup": "the test runs in what it made",
    ". .venv/bin/activate": "the tests put its programs on the PATH",
    ".venv/bin/oars doctor": "the quickstart has `oars doctor`",
    **dict.fromkeys(
        (
            "python -m lab up",
            "python -m lab up --control-plane",
            "python -m lab up --kwok 100",
            "python -m lab images",
            "python -m lab build",
            "python -m lab kubectl get pods -A",
            "python -m lab status | logs | kubeconfig | doctor",
            "python -m lab down",
            "python -m lab reset",
        ),
        "tests/lab/test_lifecycle.py runs these on a lab of its own",
    ),
    "helm upgrade oars deploy/helm/oars -n oars-system --reuse-values --set "
    "serviceMonitor.enabled=true,podMonitor.enabled=true,dashboards.enabled=true": "needs the kinds of the Prometheus "
    "Operator; tests/api/test_install_chart.py renders and installs the chart",
    "python -m lab image build -t TAG -f FILE DIR": "tests/e2e/test_compat_mars.py builds an image with it",
    'eval "$(oars completion zsh)"': "zsh is not installed where the tests run; test_commands.py checks the script",
    **dict.fromkeys(
        (
            "kubectl drain node1 --ignore-daemonsets --delete-emptydir-data",
            "kubectl get pods -A -l oars.dev/group=head --field-selector spec.nodeName=node1",
            'kubectl patch computecluster demo -n team --type merge -p \'{"spec": {"head": {"eviction": "allow"}}}\'',
        ),
        "would empty the lab's only node; tests/api/test_maintenance.py evicts a head",
    ),
    "oars logs demo head -n team --previous": "needs a container that restarted; tests/e2e/test_cli_kube.py has one",
    "oars exec demo --member demo-worker-5d9c-x2x -- nvidia-smi": "needs a graphics card",
    "oars exec demo --member demo-worker-5d9c-x2x -c agent -- cat /etc/agent.conf": "needs the reader's own sidecar",
    "ipython decisions-0004-kubernetes-through-aiohttp-1.ipy": "part of a program; test_kube_client.py has all",
    "ipython decisions-0007-one-model-one-runner-1.ipy": "part of a program; each test of a loop has all",
    "python engines-mars-2.py": "needs the reader's own pod with the Secret; tests/e2e/test_rendered.py has one",
    "python migrate-dask-kubernetes-classic-1.py": "10 workers of 4 GB; tests/e2e/test_compat_dask.py has small ones",
    **dict.fromkeys(
        (
            "TOKEN=$(kubectl get secret mars-test-demo-oars -o jsonpath='{.data.token}' | base64 -d)",
            'curl -H "Authorization: Bearer $TOKEN" http://mars-test-demo-webservice-0.default/api/session',
            'curl -H "Authorization: Bearer $TOKEN" '
            "http://mars.domain.com/mars/default/mars-test-demo-webservice-0/api/session",
            "python migrate-marsjob-1.py",
        ),
        "in a pod, and through an Ingress controller; tests/e2e/test_marsjob.py does the same with a proxy",
    ),
    "python migrate-mars-1.py": "needs an image with Mars; tests/e2e/test_compat_mars.py runs it",
    "python migrate-mars-by-hand-1.py": "on three machines; tests/live/test_mars_by_hand.py runs it",
    **dict.fromkeys(
        ("python how-to-notebooks-1.py", "python how-to-notebooks-2.py", "ipython how-to-notebooks-3.ipy"),
        "cells; tests/live/test_notebook.py runs them in a Jupyter kernel",
    ),
}

# A script for `oars run` and `oars exec`, which the pages call train.py; on any engine.
TRAIN = """
import os, sys
if os.environ["OARS_ENGINE"] == "ray":
    import ray
    ray.init(log_to_driver=False)
    workers = sum("node:__internal_head__" not in node["Resources"] for node in ray.nodes() if node["Alive"])
elif os.environ["OARS_ENGINE"] == "dask":
    from distributed import Client
    workers = len(Client().scheduler_info(n_workers=-1)["workers"])
else:
    import json, urllib.request
    token = {"Authorization": "Bearer " + open(os.environ["OARS_TOKEN_FILE"]).read()}
    request = urllib.request.Request(os.environ["OARS_ADDRESS"] + "/api/cluster/nodes?role=1", headers=token)
    workers = len(json.load(urllib.request.urlopen(request))["nodes"])
print("trained on", workers, "workers", sys.argv[1:])
"""


@dataclass(frozen=True)
class Step:
    """One shell line of a page and the output that the page shows below it; or the line that runs a Python block, and
    the text of its file."""

    page: str
    line: int
    section: str
    command: str
    shown: tuple[str, ...]
    program: str = ""

    @property
    def bare(self) -> str:
        """Without the comment behind it."""
        return re.sub(r"\s+#\s.*$", "", self.command)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: $ {self.command}"


@dataclass(frozen=True)
class Session:
    """How the lines of a page, or of some of its sections, are run."""

    page: str
    sections: tuple[str, ...] = ()  # empty: all
    before: tuple[str, ...] = ()  # what the reader has done before
    files: Mapping[str, str] = field(default_factory=dict)  # that the reader has, besides those of the page
    edits: Mapping[str, str] = field(default_factory=dict)  # text of a command → what this reader types instead
    only: str = ""  # a pattern for the commands to run; empty: all
    own_cache: bool = False  # the reader has no cached environments yet

    @property
    def steps(self) -> list[Step]:
        found = steps(self.page)
        unknown = set(self.sections) - {step.section for step in found}
        assert not unknown, f"{self.page} has no shell lines in {unknown}"
        chosen = [step for step in found if not self.sections or step.section in self.sections]
        return [step for step in chosen if re.search(self.only, step.command)]


def pages() -> list[str]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(page.relative_to(ROOT)) for page in found]


def steps(page: str) -> list[Step]:
    text = (ROOT / page).read_text()
    found: list[Step] = []
    named, programs = files(page).values(), 0
    for block in _BLOCK.finditer(text):
        section = _HEADING.findall(_BLOCK.sub("", text[: block.start()]))[-1]
        first = text[: block.start(2)].count("\n") + 1
        if block[1] == "console":
            found += _lines(page, first, section, block[2])
        elif block[1] == "python" and block[2] not in named:
            programs += 1
            name = f"{page.removeprefix('docs/').removesuffix('.md').replace('/', '-')}-{programs}"
            command = f"ipython {name}.ipy" if _awaits(block[2]) else f"python {name}.py"
            found.append(Step(page, first, section, command, (), block[2]))
    return found


def _lines(page: str, first: int, section: str, block: str) -> list[Step]:
    found: list[Step] = []
    for number, line in enumerate(block.splitlines(), first):
        if line.startswith("$ "):
            found.append(Step(page, number, section, line[2:], ()))
        else:
            last = found.pop()
            found.append(Step(page, last.line, section, last.command, (*last.shown, line)))
    return found


def _awaits(program: str) -> bool:
    """True if only IPython takes it."""
    try:
        compile(program, "", "exec")
    except SyntaxError:
        return True
    return False


def files(page: str) -> dict[str, str]:
    """The blocks that the page introduces as files."""
    text = (ROOT / page).read_text()
    found = {}
    for block in _BLOCK.finditer(text):
        paragraph = text[: block.start()].rstrip().rpartition("\n\n")[2]
        if paragraph.endswith(":") and "```" not in paragraph:
            for name, ending in _FILE.findall(paragraph):
                if _LANGUAGES[ending] == block[1]:
                    found[name] = block[2]
    return found


def missing(shown: Sequence[str], printed: str) -> str:
    """The first line of the page's output that the command did not print; empty: it printed them all."""
    patterns = [_pattern(line) for line in shown if line.strip() not in ("", "…")]
    lines = iter(printed.splitlines())
    for pattern in patterns:
        if not any(pattern.search(line) for line in lines):
            return pattern.pattern
    return ""


def _pattern(line: str) -> re.Pattern[str]:
    text, end, forms = "", 0, (*_VARIABLE, ".*", r"\s+")
    for part in _PARTS.finditer(line.strip()):
        text += re.escape(line.strip()[end : part.start()]) + forms[(part.lastindex or 1) - 1]
        end = part.end()
    return re.compile(r"^\s*" + text + re.escape(line.strip()[end:]))


def expected(step: Step) -> str:
    """The pattern for the output of a line that the page shows without output."""
    return _row((*RESULTS, *PROGRAMS), step)


def effect(step: Step) -> str:
    """The shell line that succeeds if the command did what it is for; empty: its output shows it."""
    return _row(EFFECTS, step)


def _row(table: Sequence[tuple[str, str]], step: Step) -> str:
    line = step.command if "# there: " in step.command else step.bare  # what to type in the shell that it opens
    for command, text in table:
        if found := re.match(command, line):
            return re.sub(r"\\(\d)", lambda group: found[int(group[1])] or "", text)
    return ""


def check(step: Step, printed: str) -> None:
    if step.shown:
        absent = missing(step.shown, printed)
        assert not absent, f"{step}\nThe page shows a line like {absent!r}, but it printed:\n{printed}"
        return
    result = expected(step)
    assert result, f"{step}\nThe page shows no output, and RESULTS has no row for it. It printed:\n{printed}"
    assert re.search(result, printed), f"{step}\nno {result!r} in:\n{printed}"


class Reader:
    """Types the lines of a page in a directory."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder, self._env = folder, env

    def read(self, session: Session) -> None:
        for name, text in {"train.py": TRAIN, **files(session.page), **session.files}.items():
            (self._folder / name).write_text(text)
        for command in session.before:
            self.run(command)
        for step in session.steps:
            if step.bare not in CANNOT_RUN:
                self._take(step, session.edits)

    def _take(self, step: Step, edits: Mapping[str, str]) -> None:
        if step.program:
            (self._folder / step.command.split()[1]).write_text(step.program)
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                check(step, self.run(step.command, edits))
                break
            except AssertionError:
                if not re.match(REPEATED, step.command) or time.monotonic() > deadline:
                    raise
            time.sleep(1)  # as a reader who looks again
        if line := effect(step):
            self.run(line)

    def run(self, command: str, edits: Mapping[str, str] = NO_EDITS) -> str:
        """What a command prints. It must succeed, or end by Ctrl-C if it is endless."""
        for text, instead in edits.items():
            command = command.replace(text, instead)
        typed = next((text for pattern, text in TYPED.items() if re.match(pattern, command)), "")
        with (self._folder / "output.txt").open("w+") as output:
            process = subprocess.Popen(
                ["bash", "-o", "pipefail", "-c", command], cwd=self._folder, env=self._env, text=True,
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            assert process.stdin is not None
            process.stdin.write(typed)
            process.stdin.close()
            if re.search(ENDLESS, command):
                self._interrupt(process, command)
            code = process.wait(SECONDS)
            output.seek(0)
            printed = output.read()
        allowed = {0} | ({130, -signal.SIGINT} if re.search(ENDLESS, command) else set())
        allowed |= {1} if command.startswith("oars diff") else set()  # something differs
        assert code in allowed, f"$ {command}\nexit code {code}:\n{printed}"
        return printed

    def _interrupt(self, process: subprocess.Popen[str], command: str) -> None:
        """Press Ctrl-C when the expected output is there."""
        result = expected(Step("", 0, "", command, ()))
        deadline = time.monotonic() + SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if re.search(result, (self._folder / "output.txt").read_text()):
                os.killpg(process.pid, signal.SIGINT)
                return
            time.sleep(0.1)  # another process's output: there is nothing to await
