"""Start, repair and stop a lab."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from string import Template

from lab import cache, cgroups, components, files, health, needs, network, node, pki, process
from lab.api import Api, connect, kubeconfig
from lab.build import complete, programs
from lab.components import CONTROL_PLANE, FOLLOWERS, NODE, SERVERS, Site
from lab.errors import Ended, LabError
from lab.network import Network
from lab.process import Process
from lab.settings import Settings
from lab.wait import until

# Marks a directory as a lab's.
MARK = "oars-lab"
# Marks a lab that was started by tests, not by a person.
STARTED_BY_TESTS = "started-by-tests"
CONFIG = Path(__file__).parent / "config"
# kubeconfig file of each component -> its user
USERS = {
    "kubeconfig": "admin",
    "kube-controller-manager.kubeconfig": "system:kube-controller-manager",
    "kube-scheduler.kubeconfig": "system:kube-scheduler",
    "kube-proxy.kubeconfig": "system:kube-proxy",
    "kubelet.kubeconfig": "system:node:node1",
}


def quiet(_: str) -> None:
    """Discard the message."""


class Lab:
    """The lab in one directory. Every method may be called at any time, in any state."""

    def __init__(self, settings: Settings, say: Callable[[str], None] = quiet) -> None:
        self.settings = settings
        self.dir = settings.dir
        self.say = say

    @cached_property
    def binaries(self) -> dict[str, Path]:
        """Paths of the programs; they are built on first use."""
        return programs(self.settings.cache, self.say)

    @property
    def name(self) -> str:
        """Name of the lab's cgroup."""
        return f"oars-lab-{self.settings.id}"

    @property
    def api(self) -> Api:
        """Client with administrator rights."""
        if not self.settings.kubeconfig.exists():
            raise LabError("The lab is not up: run `python -m lab up`.")
        return connect(json.loads(self.settings.kubeconfig.read_text()))

    @property
    def init(self) -> Process | None:
        """The cage's process 1, or None if the cage does not exist."""
        found = process.saved(self.dir / "cage.pid")
        return found if found and found.alive else None

    @property
    def network(self) -> Network:
        """The lab's addresses."""
        path = self.dir / "network.json"
        if not path.exists():
            raise LabError("The lab is not up: run `python -m lab up`.")
        return Network(**json.loads(path.read_text()))

    def component(self, name: str) -> Process | None:
        """Return a component's process, or None if it does not run."""
        found = process.saved(self.dir / "pids" / name)
        return found if found and found.alive else None

    def running(self) -> list[str]:
        """Return the names of the components that run."""
        return [name for name in components.ALL if self.component(name)]

    # -- starting ------------------------------------------------------------------------

    def up(self, with_node: bool = True) -> None:
        """Start every component that does not run."""
        needs.install(complete(self.settings.cache), self.say)
        _ = self.binaries
        with self.locked():
            site = self._site()
            self._start(site, "etcd")
            if with_node:
                # It depends on nothing, and is ready by the time the API server is.
                self._start(site, "containerd")
            self._up_control_plane(site)
            if with_node:
                self._up_node(site)

    def _up_control_plane(self, site: Site) -> None:
        # In this order, each one ready before the next starts: an API server that starts before etcd backs off for up
        # to 25 s, and the other components exit if their RBAC roles do not exist yet.
        for name in SERVERS:
            self._start(site, name)
            self._ready(site, name)
        self._follow(site, *CONTROL_PLANE)

    def _follow(self, site: Site, *wanted: str) -> None:
        """Start the dependent components that are wanted or ran before; restart those older than the servers."""
        servers = [server for server in map(self.component, SERVERS) if server]
        chosen = [name for name in FOLLOWERS if name in wanted or (self.dir / "pids" / name).exists()]
        for name in chosen:
            running = self.component(name)
            if running and any(running.older_than(server) for server in servers):
                running.kill()
            self._start(site, name)
        for name in chosen:
            self._ready(site, name)

    def _up_node(self, site: Site) -> None:
        self._ready(site, "containerd")
        node.furnish(site)
        for name in NODE:
            self._start(site, name)
        node.publish_dns(self.api, site.network)
        for name in NODE:
            self._ready(site, name)
        node.await_ready(self.api, site.network)

    def start(self, name: str) -> None:
        """Start one component, and wait until it and the components that depend on it are healthy."""
        with self.locked():
            site = self._site()
            self._start(site, name)
            self._ready(site, name)
            if name in SERVERS and all(map(self.component, SERVERS)):
                for server in SERVERS:
                    self._ready(site, server)
                self._follow(site)

    def _site(self) -> Site:
        """Create whatever is missing: cage, addresses, certificates, configuration files."""
        addresses = self._caged()
        trust = pki.make(self.dir, addresses)
        site = Site(self.dir, addresses, trust, self.binaries, self.name)
        self._write_files(site)
        return site

    def _caged(self) -> Network:
        if self.init and (self.dir / "network.json").exists():
            return self.network
        self._clear_cage()
        (self.dir / "varlog").mkdir(exist_ok=True)
        init = process.caged(["make", self.dir / "varlog"], self.dir / "cage.pid")
        cgroups.make(self.name)
        # Locked: another lab must not choose the same range before this one uses it.
        with cache.lock(self.settings.cache / "locks" / "network"):
            addresses = network.choose(self.settings.id)
            network.join(addresses, init.pid)
        files.write_whole(self.dir / "network.json", json.dumps(vars(addresses)))
        return addresses

    def _write_files(self, site: Site) -> None:
        server = f"https://{site.network.node}:6443"
        for file, user in USERS.items():
            _write(self.dir / file, kubeconfig(server, site.pki.path("ca.crt"), site.pki.token(user)))
        for name in ("containerd.toml", "kubelet.yaml", "kube-proxy.yaml", "Corefile"):
            _write(self.dir / name, Template((CONFIG / name).read_text()).substitute(site.values()))
        _write(self.dir / "cni/lab.conflist", Template((CONFIG / "cni.conflist").read_text()).substitute(site.values()))
        _write(self.dir / "resolv.conf", "")

    def _start(self, site: Site, name: str) -> None:
        if self.component(name):
            return
        init = self.init
        if not init:
            raise LabError(
                "The lab stopped while it was starting: see `python -m lab logs`, then run `python -m lab up` again."
            )
        self.settings.logs.mkdir(exist_ok=True)
        log = self.settings.logs / f"{name}.log"
        process.caged(["enter", str(init.pid), log, *components.command(name, site)], self.dir / "pids" / name)

    def _ready(self, site: Site, name: str) -> None:
        """Wait until a component is healthy. Start it once more if it exits: a component that a killed `up` left may
        exit a moment after we saw it."""
        try:
            self._await_well(name)
        except Ended:
            self._start(site, name)
            self._await_well(name)

    def _await_well(self, name: str) -> None:
        """Wait until a component is healthy. Raise Ended if it exits."""

        def well() -> bool:
            if not self.component(name):
                raise Ended(f"{name} exited: {self.tail(name)}")
            return self.healthy(name)

        until(f"{name} is ready", well, 120)

    def healthy(self, name: str) -> bool:
        """True if a component reports that it is healthy."""
        address = components.health(name, self.network)
        return health.answers(address) if address else node.containerd_answers(self.dir)

    def tail(self, name: str, lines: int = 5) -> str:
        """Return the last lines of a component's log."""
        path = self.settings.logs / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else "there is no log"

    # -- stopping ------------------------------------------------------------------------

    def down(self) -> None:
        """Stop everything. Only files stay: images, logs, certificates."""
        if not (self.dir / MARK).exists():
            return
        with self.locked():
            containerd = self.component("containerd")
            if containerd:
                # Its database outlives the lab and must be closed properly.
                containerd.stop(5)
            self._clear_cage()
            for folder in ("etcd", "kubelet", "varlog", "pids"):
                shutil.rmtree(self.dir / folder, ignore_errors=True)
            # The next lab in this directory may be a person's.
            (self.dir / STARTED_BY_TESTS).unlink(missing_ok=True)

    def reset(self) -> None:
        """Stop the lab and delete its files. The shared cache stays."""
        if (self.dir / MARK).exists():
            self.down()
            shutil.rmtree(self.dir, ignore_errors=True)

    def _clear_cage(self) -> None:
        """Kill the cage, if there is one, and wait until everything in it is gone."""
        found = process.saved(self.dir / "cage.pid")
        if found:
            found.kill()
        network.await_gone(network.device(self.settings.id))
        cgroups.remove(self.name)
        for path in (self.dir / "cage.pid", self.dir / "network.json", self.dir / "containerd.sock"):
            path.unlink(missing_ok=True)

    def claim(self) -> None:
        """Mark the directory as the lab's. `reset` deletes it, so it must not contain anything else."""
        if (self.dir / MARK).exists():
            return
        if self.dir.exists() and any(self.dir.iterdir()):
            raise LabError(f"{self.dir} contains files that are not the lab's: choose an empty or new directory.")
        self.dir.mkdir(parents=True, exist_ok=True)
        (self.dir / MARK).touch()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lab's lock: one change at a time."""
        self.claim()
        with cache.lock(self.dir / "lock"):
            yield


def _write(path: Path, text: str) -> None:
    """Write a file that only its owner may read: most contain a token.

    Leave the file alone if it has the right content: kube-proxy exits when its file changes.
    """
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
