"""mars-scheduler, mars-web and mars-worker: a Mars cluster started by hand on several machines, with the options of
Mars up to 0.6 and of today. Scheduler and worker are `oars head` and `oars worker` under Mars' names.

The machines find each other by the scheduler's address: the port that they join is 10000 above its own. The join token
is in the scheduler's state directory; on machines that do not share it, OARS_JOIN_TOKEN or --token-file names it. The
file may be written later: the programs start in any order."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from oars.base.errors import OarsError, SpecError, UsageError
from oars.compat.mars import arguments
from oars.compat.mars.web import WebProxy
from oars.places.local.memory import usable_memory
from oars.service import Report, specs
from oars.service.hosts import HostOptions, HostService, Joining, WorkerSize
from oars.spec import resources

JOIN_OFFSET = 10_000
DEFAULT_PORT = {"scheduler": 7103, "web": 7104}


def scheduler(words: Sequence[str] | None = None) -> int:
    """Run a scheduler, which Mars calls supervisor since 0.7, until Ctrl-C."""
    parser = _parser("mars-scheduler", "scheduler")
    # These names of the programs are pymars', and so are the programs of its users.
    parser.add_argument("--distribution", choices=("pymars", "xorbits"), default="pymars", help="default: pymars")
    options = parser.parse_args(words)
    host, port = _endpoint(options, DEFAULT_PORT["scheduler"])
    hosts = HostService(os.environ)
    name = f"mars-{port}"

    async def run() -> None:
        overrides = {"engine": "mars", "packages": None}
        spec = specs.from_data({}, [f"mars.distribution={options.distribution}"], overrides).spec
        ports = HostOptions({"supervisor": port}, are_ports_default=False, progress=_Changes())
        await hosts.run_head(name, spec, join_address(f"{host}:{port}"), ports, _Reports(f"scheduler {host}:{port}"))

    _say(f"scheduler {host}:{port}: {options.distribution}. Programs that connect need the same distribution of Mars.")
    _say(f"Join token, for machines that do not share this home: {hosts.token_file(name)}")
    return _run(run())


def worker(words: Sequence[str] | None = None) -> int:
    """Run a worker for a scheduler until Ctrl-C."""
    parser = _joining_parser("mars-worker", "worker")
    parser.add_argument(
        "--n-cpu", "--cpu-procs", type=_unless_auto(_cpu), metavar="N", help="processors; default: all of this machine"
    )
    parser.add_argument(
        "--mem-bytes", "--phy-mem", type=_unless_auto(_memory), metavar="SIZE",
        help="memory in bytes, such as 4g (of 1024^3 bytes), or such as 50%% of this machine's; default: four fifths",
    )  # fmt: skip
    options = parser.parse_args(words)
    host, port = _endpoint(options, 0, "")
    hosts = HostService(os.environ)
    name = f"{hosts.host_name()}-{port}" if port else hosts.host_name()

    async def run() -> None:
        join, token = join_address(options.schedulers), _token(hosts, options)
        size = WorkerSize(1, options.n_cpu, options.mem_bytes)
        joining = Joining(join, token, name, host, size)
        await hosts.run_worker(
            joining, HostOptions({"worker": port} if port else {}, progress=_Changes()), _Reports(f"worker {name}")
        )

    return _run(run())


def web(words: Sequence[str] | None = None) -> int:
    """Serve the web page and the API of a scheduler at another address until Ctrl-C."""
    parser = _joining_parser("mars-web", "web")
    options = parser.parse_args(words)
    host, port = _endpoint(options, DEFAULT_PORT["web"])
    hosts = HostService(os.environ)

    async def run() -> None:
        join, token = join_address(options.schedulers), _token(hosts, options)
        proxy = WebProxy(lambda: hosts.find_port(join, token, "web"), _say)
        _say(f"web http://{host}:{port}: everybody who reaches it can run code in the cluster, as with Mars itself")
        await proxy.serve(host, port)

    return _run(run())


def join_address(scheduler: str) -> str:
    """Where machines join the scheduler at this address."""
    if "," in scheduler:
        message = f"{scheduler!r} are several schedulers, but a cluster has exactly one, as in every Mars since 0.7."
        raise UsageError(message, f"Give one: `-s {scheduler.partition(',')[0]}`.")
    host, _, text = scheduler.rpartition(":")
    if not host or not text.isdigit() or not 0 < int(text) < 65536:
        raise UsageError(f"{scheduler!r} is not a scheduler's address.", "Write HOST:PORT, such as 10.0.0.1:7103.")
    port = int(text)
    return f"{host}:{port + JOIN_OFFSET if port + JOIN_OFFSET < 65536 else port - JOIN_OFFSET}"


def _parser(program: str, role: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(program, description=f"Run the {role} of a Mars cluster over several machines.")
    parser.add_argument("-a", "--advertise", "-H", "--host", dest="host", default="", help="this machine's address")
    parser.add_argument("-p", "--port", "--ports", dest="port", type=_port, default=0, help="the port to listen on")
    parser.add_argument("-e", "--endpoint", type=_address, metavar="HOST:PORT", help="both of them")
    return parser


def _joining_parser(program: str, role: str) -> argparse.ArgumentParser:
    parser = _parser(program, role)
    parser.add_argument("-s", "--schedulers", "--supervisors", required=True, metavar="HOST:PORT")
    parser.add_argument(
        "--token-file", metavar="FILE", help="the join token; default: OARS_JOIN_TOKEN, or the shared file"
    )
    return parser


def _port(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; write a number from 1 to 65535")
    return int(text)


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    _port(port)
    return text


def _unless_auto(parse: Callable[[str], str]) -> Callable[[str], str | None]:
    """For argparse. Mars writes `auto` for the default."""

    def parsed(text: str) -> str | None:
        try:
            return None if text == "auto" else parse(text)
        except (ValueError, SpecError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def _cpu(text: str) -> str:
    resources.cpu(text)
    return text


def _memory(text: str) -> str:
    return str(memory(text, usable_memory(os.environ)))


def memory(text: str, total: int) -> int:
    """Bytes, of a size or of a share of `total`, as Mars writes them. Raises SpecError."""
    wanted = arguments.size_or_share("memory", text)
    return wanted if isinstance(wanted, int) else resources.cache_size(wanted, total)


def _endpoint(options: argparse.Namespace, default_port: int, default_host: str = "127.0.0.1") -> tuple[str, int]:
    host, _, port = (options.endpoint or "").rpartition(":")
    if options.endpoint and (options.host or options.port):
        raise SystemExit("Give either -e HOST:PORT, or -a HOST and -p PORT.")
    return host or options.host or default_host, int(port or 0) or options.port or default_port


def _token(hosts: HostService, options: argparse.Namespace) -> str | Path:
    """The token, or its file, which the scheduler writes."""
    if options.token_file:
        return Path(options.token_file)
    if token := os.environ.get("OARS_JOIN_TOKEN"):
        return token
    shared = hosts.token_file(f"mars-{options.schedulers.rpartition(':')[2]}")
    if not shared.exists():
        _say(f"No join token is given, so {shared} is used. If it is on another machine, use --token-file FILE.")
    return shared


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class _Changes:
    """Prints a line unless it is the same as the last one."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, line: str) -> None:
        if line != self._last:
            self._last = line
            _say(line)


class _Reports:
    """Prints the phase and the number of workers whenever one of them has changed."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._say = _Changes()

    def __call__(self, report: Report) -> None:
        status = report.status
        self._say(f"{self._title}: {status.phase}, {status.ready} of {status.wanted} workers ready")


def _run(work: Coroutine[Any, Any, None]) -> int:
    """Run until it ends or a signal cancels it, which cleans up. Returns the exit code."""

    async def until_signal() -> int:
        task = asyncio.ensure_future(work)
        received: list[int] = []

        def handle(number: int) -> None:
            received.append(number)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, handle, number)
        try:
            await task
        except asyncio.CancelledError:
            if not received:
                raise
        return 128 + received[0] if received else 0

    try:
        return asyncio.run(until_signal())
    except OarsError as error:
        _say(f"error: {error}")
        return error.exit_code
