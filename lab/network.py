"""The lab's addresses and its network device.

Each lab has its own /16 network, which the machine routes into the cage through a veth pair. The cage has no default
route: the lab cannot reach other networks.
"""

import hashlib
import ipaddress
import json
from collections.abc import Iterable
from dataclasses import dataclass

from lab.errors import LabError
from lab.run import run
from lab.wait import until

FIRST, LAST = 128, 252


@dataclass(frozen=True)
class Network:
    """Addresses of the lab whose range is 10.<number>.0.0/16."""

    number: int
    device: str

    @property
    def range(self) -> str:
        """The lab's network."""
        return f"10.{self.number}.0.0/16"

    @property
    def host(self) -> str:
        """The machine's address: pods and webhooks reach test servers here."""
        return f"10.{self.number}.0.1"

    @property
    def node(self) -> str:
        """Address of the node and the API server."""
        return f"10.{self.number}.0.2"

    @property
    def pods(self) -> str:
        """Address range of pods."""
        return f"10.{self.number}.64.0/20"

    @property
    def services(self) -> str:
        """Address range of Services."""
        return f"10.{self.number}.128.0/17"

    @property
    def kubernetes(self) -> str:
        """Address of the Service `kubernetes`: the first of the range."""
        return f"10.{self.number}.128.1"

    @property
    def dns(self) -> str:
        """Address of the Service `kube-dns`."""
        return f"10.{self.number}.128.10"


def device(lab: str) -> str:
    """Return the name of the machine's end of the veth pair."""
    return f"oars-{lab}"


def choose(lab: str) -> Network:
    """Choose a free range: always the same for the same lab, unless it is in use."""
    taken = list(_taken())
    span = LAST - FIRST + 1
    start = int(hashlib.sha256(lab.encode()).hexdigest(), 16) % span
    for step in range(span):
        network = Network(FIRST + (start + step) % span, device(lab))
        if not _overlaps(network.range, taken):
            return network
    raise LabError(f"Every range from 10.{FIRST}.0.0/16 to 10.{LAST}.0.0/16 is in use on this machine.")


def join(network: Network, init: int) -> None:
    """Create the veth pair and the routes. The kernel removes them with the cage."""
    outside, inside = network.device, ["nsenter", "-t", str(init), "-n"]
    run(["ip", "link", "add", outside, "type", "veth", "peer", "name", "lab0", "netns", str(init)])
    run(["ip", "addr", "add", f"{network.host}/30", "dev", outside])
    run(["ip", "link", "set", outside, "up"])
    run([*inside, "ip", "addr", "add", f"{network.node}/30", "dev", "lab0"])
    run([*inside, "ip", "link", "set", "lab0", "up"])
    # Processes on the node need a route for Service addresses.
    run([*inside, "ip", "route", "add", network.services, "dev", "lab0", "src", network.node])
    # tcp_orphan_retries: a connection to a deleted pod would keep the network of a dead cage for two minutes.
    for name in ("ip_forward", "tcp_orphan_retries"):
        run([*inside, "sh", "-c", f"echo 1 > /proc/sys/net/ipv4/{name}"])
    run(["ip", "route", "add", network.range, "via", network.node, "dev", outside])


def device_exists(name: str) -> bool:
    """True if the machine has this device."""
    return any(link.get("ifname") == name for link in json.loads(run(["ip", "-j", "link"])))


def await_gone(name: str) -> None:
    """Wait until the kernel has removed the device of a dead namespace."""
    until(f"network device {name} is gone", lambda: not device_exists(name), 90)


def _taken() -> Iterable[ipaddress.IPv4Network]:
    for route in json.loads(run(["ip", "-j", "-4", "route", "show", "table", "all"])):
        if route["dst"] != "default":
            yield ipaddress.IPv4Network(route["dst"], strict=False)


def _overlaps(wanted: str, taken: list[ipaddress.IPv4Network]) -> bool:
    mine = ipaddress.IPv4Network(wanted)
    return any(mine.overlaps(other) for other in taken)
