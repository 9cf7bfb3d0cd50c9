"""Network namespaces that stand for machines: each has its own addresses and its own state directory of Oars. They are
connected by a switch, which is a namespace too, so that the network of this computer stays as it is."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OARS = str(Path(sys.executable).with_name("oars"))


@dataclass
class Machine:
    name: str
    address: str
    namespace: str
    switch: str  # the namespace of the switch, and the device there that leads to this machine
    device: str
    state: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "OARS_STATE_DIR": str(self.state)}

    @property
    def log(self) -> Path:
        return self.state.parent / f"{self.name}.log"

    def argv(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *command]

    def start(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a program on this machine, in the background."""
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                self.argv(*command), env={**self.environ, **(env or {})}, stdout=output, stderr=output
            )
        self.processes.append(process)
        return process

    def run(self, *command: str, typed: str = "", seconds: float = 120.0, code: int = 0) -> str:
        """The output of a program on this machine. `typed`: its standard input."""
        done = subprocess.run(
            self.argv(*command), env=self.environ, input=typed, capture_output=True, text=True, timeout=seconds
        )
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if code == 0 else done.stderr

    def status(self, name: str) -> dict[str, Any]:
        """The status of a cluster's part on this machine; empty if there is none."""
        done = subprocess.run(
            self.argv(OARS, "status", name, "-o", "json"), env=self.environ, capture_output=True, text=True, timeout=60
        )
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return found

    def ready(self, name: str) -> list[str]:
        """The members that are ready, as this machine sees them."""
        return sorted(each["id"] for each in self.status(name).get("members", ()) if each["phase"] == "Ready")

    def pid(self, name: str, member: str) -> int:
        (found,) = (each["pid"] for each in self.status(name)["members"] if each["id"] == member)
        return int(found)

    def disconnect(self) -> None:
        _ip("-n", self.switch, "link", "set", self.device, "down")

    def connect(self) -> None:
        _ip("-n", self.switch, "link", "set", self.device, "up")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@contextlib.contextmanager
def machines(directory: Path, *names: str) -> Iterator[list[Machine]]:
    """Machines that reach each other. At the end everything that was started on them is stopped."""
    tag = secrets.token_hex(3)
    switch = f"oars-{tag}-switch"
    made: list[Machine] = []
    namespaces = [switch]
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(names, 1):
            machine = Machine(
                name, f"10.77.0.{number}", f"oars-{tag}-{name}", switch, f"port{number}", directory / name / "state"
            )
            machine.state.parent.mkdir()
            namespaces.append(machine.namespace)
            _ip("netns", "add", machine.namespace)
            _ip("-n", machine.namespace, "link", "set", "lo", "up")
            _ip("-n", switch, "link", "add", machine.device, "type", "veth", "peer", "name", "eth0", "netns",
                machine.namespace)  # fmt: skip
            _ip("-n", switch, "link", "set", machine.device, "master", "bridge", "up")
            _ip("-n", machine.namespace, "addr", "add", f"{machine.address}/24", "dev", "eth0")
            _ip("-n", machine.namespace, "link", "set", "eth0", "up")
            made.append(machine)
        yield made
    finally:
        for machine in made:
            _stop(machine)
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, timeout=20)


def _stop(machine: Machine) -> None:
    for process in machine.processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in machine.processes:
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
    subprocess.run(machine.argv(OARS, "down", "--all"), env=machine.environ, capture_output=True, timeout=90)


def until(what: str, condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timed out: {what}"
        time.sleep(0.3)  # poll: the state of other processes
