"""One lab: start it, mend it, stop it."""

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

# What says that a directory is a lab's.
MARK = "oars-lab"
# What says that no person started what runs in it, but tests did.
STARTED_BY_TESTS = "started-by-tests"
CONFIG = Path(__file__).parent / "config"
# kubeconfigs of the components, by the user each of them is
USERS = {
    "kubeconfig": "admin",
    "kube-controller-manager.kubeconfig": "system:kube-controller-manager",
    "kube-scheduler.kubeconfig": "system:kube-scheduler",
    "kube-proxy.kubeconfig": "system:kube-proxy",
    "kubelet.kubeconfig": "system:node:node1",
}


def quiet(_: str) -> None:
    """Say nothing."""


class Lab:
    """The lab of one directory. Every method may be called at any time, in any state."""

    def __init__(self, settings: Settings, say: Callable[[str], None] = quiet) -> None:
        self.settings = settings
        self.dir = settings.dir
        self.say = say

    @cached_property
    def binaries(self) -> dict[str, Path]:
        """The programs, built on first use."""
        return programs(self.settings.cache, self.say)

    @property
    def name(self) -> str:
        """What this lab's cgroup is called."""
        return f"oars-lab-{self.settings.id}"

    @property
    def api(self) -> Api:
        """A client with all rights."""
        if not self.settings.kubeconfig.exists():
            raise LabError("The lab is not up: run `python -m lab up`.")
        return connect(json.loads(self.settings.kubeconfig.read_text()))

    @property
    def init(self) -> Process | None:
        """The cage's process 1, if the cage stands."""
        found = process.saved(self.dir / "cage.pid")
        return found if found and found.alive else None

    @property
    def network(self) -> Network:
        """The addresses in use."""
        path = self.dir / "network.json"
        if not path.exists():
            raise LabError("The lab is not up: run `python -m lab up`.")
        return Network(**json.loads(path.read_text()))

    def component(self, name: str) -> Process | None:
        """A component's process, if it runs."""
        found = process.saved(self.dir / "pids" / name)
        return found if found and found.alive else None

    def running(self) -> list[str]:
        """The components that run."""
        return [name for name in components.ALL if self.component(name)]

    # -- starting ------------------------------------------------------------------------

    def up(self, with_node: bool = True) -> None:
        """Bring up whatever is not: nothing, something or everything may be running."""
        needs.install(complete(self.settings.cache), self.say)
        _ = self.binaries
        with self.locked():
            site = self._site()
            self._start(site, "etcd")
            if with_node:
                # It needs nobody, and is ready by the time the apiserver is.
                self._start(site, "containerd")
            self._up_control_plane(site)
            if with_node:
                self._up_node(site)

    def _up_control_plane(self, site: Site) -> None:
        # An apiserver that comes first backs off from etcd for up to 25 s; the others end
        # themselves if they come before their roles do. So each waits for the one before.
        for name in SERVERS:
            self._start(site, name)
            self._ready(site, name)
        self._follow(site, *CONTROL_PLANE)

    def _follow(self, site: Site, *wanted: str) -> None:
        """Have those run that are wanted or ran in this cluster before, and none that is older than its servers."""
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
        """Bring back one component, and wait until it and those that follow it are well."""
        with self.locked():
            site = self._site()
            self._start(site, name)
            self._ready(site, name)
            if name in SERVERS and all(map(self.component, SERVERS)):
                for server in SERVERS:
                    self._ready(site, server)
                self._follow(site)

    def _site(self) -> Site:
        """The cage, the addresses, the trust and the files: made, or as they are."""
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
        # One lab at a time looks for a free range, and takes it before the next one looks.
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
            raise LabError("The lab ended while it was starting: see its logs, then run `up` again.")
        self.settings.logs.mkdir(exist_ok=True)
        log = self.settings.logs / f"{name}.log"
        process.caged(["enter", str(init.pid), log, *components.command(name, site)], self.dir / "pids" / name)

    def _ready(self, site: Site, name: str) -> None:
        """Wait until a component says it is well. One that ends is started once more: it may be what an `up` that was
        killed left, which ends a moment after we saw it."""
        try:
            self._await_well(name)
        except Ended:
            self._start(site, name)
            self._await_well(name)

    def _await_well(self, name: str) -> None:
        """A dead one is not waited for."""

        def well() -> bool:
            if not self.component(name):
                raise Ended(f"{name} ended: {self.tail(name)}")
            return self.healthy(name)

        until(f"{name} is ready", well, 120)

    def healthy(self, name: str) -> bool:
        """Whether a component says that it is well."""
        address = components.health(name, self.network)
        return health.answers(address) if address else node.containerd_answers(self.dir)

    def tail(self, name: str, lines: int = 5) -> str:
        """The end of a component's log."""
        path = self.settings.logs / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else "it left no log"

    # -- stopping ------------------------------------------------------------------------

    def down(self) -> None:
        """Stop everything and leave nothing but files (images, logs, certificates)."""
        if not (self.dir / MARK).exists():
            return
        with self.locked():
            containerd = self.component("containerd")
            if containerd:
                # The only one with a database that outlives the lab: let it close.
                containerd.stop(5)
            self._clear_cage()
            for folder in ("etcd", "kubelet", "varlog", "pids"):
                shutil.rmtree(self.dir / folder, ignore_errors=True)
            # What comes next may be a person's.
            (self.dir / STARTED_BY_TESTS).unlink(missing_ok=True)

    def reset(self) -> None:
        """`down`, and delete the lab's files too; the cache of built things stays."""
        if (self.dir / MARK).exists():
            self.down()
            shutil.rmtree(self.dir, ignore_errors=True)

    def _clear_cage(self) -> None:
        """End the cage, if any, and wait for all that dies with it."""
        found = process.saved(self.dir / "cage.pid")
        if found:
            found.kill()
        network.await_gone(network.device(self.settings.id))
        cgroups.remove(self.name)
        for path in (self.dir / "cage.pid", self.dir / "network.json", self.dir / "containerd.sock"):
            path.unlink(missing_ok=True)

    def claim(self) -> None:
        """Make the directory ours; `reset` deletes it whole, so it must never be anybody else's."""
        if (self.dir / MARK).exists():
            return
        if self.dir.exists() and any(self.dir.iterdir()):
            raise LabError(f"{self.dir} holds things that are not the lab's: choose an empty or a new directory.")
        self.dir.mkdir(parents=True, exist_ok=True)
        (self.dir / MARK).touch()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One change at a time."""
        self.claim()
        with cache.lock(self.dir / "lock"):
            yield


def _write(path: Path, text: str) -> None:
    """Write a file only its owner may read: most of them hold a token.

    One that is as it should be stays untouched: kube-proxy ends itself when its file is written.
    """
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
