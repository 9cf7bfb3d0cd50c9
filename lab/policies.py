"""Enforcement of NetworkPolicies. The lab's CNI bridge does not enforce them, so nftables rules in each pod's network
namespace do.

Only ingress rules with label selectors and TCP ports are supported, as Oars creates them. Anything else is an error, so
that no test relies on a rule that is not enforced.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lab.api import Object
from lab.cluster import Lab
from lab.errors import LabError
from lab.harm import process_of
from lab.run import run

TABLE = "inet oars_policies"
EVERY = 0.3  # seconds
MAX_ATTEMPTS = 20  # to enter the network of a pod that is reported as running


@dataclass(frozen=True)
class World:
    """The pods and namespaces of the cluster."""

    pods: Sequence[Object]
    namespaces: Sequence[Object]
    node: str  # addresses of the node, which can always reach its pods

    def addresses(self, peer: Object, home: str) -> list[str]:
        """Return the addresses of the pods that a peer of a policy in namespace `home` selects."""
        _only(peer, "podSelector", "namespaceSelector")
        homes = [home]
        if "namespaceSelector" in peer:
            homes = [n["metadata"]["name"] for n in self.namespaces if _selects(peer["namespaceSelector"], n)]
        meant = [
            pod for pod in self.pods
            if pod["metadata"]["namespace"] in homes and _selects(peer.get("podSelector", {}), pod)
        ]  # fmt: skip
        return sorted(filter(None, (pod["status"].get("podIP") for pod in meant)))


def ruleset(pod: Object, policies: Sequence[Object], world: World) -> str:
    """Return the nftables rules for a pod; empty if no policy selects it."""
    home = pod["metadata"]["namespace"]
    own = [policy for policy in policies if policy["metadata"]["namespace"] == home]
    mine = [policy["spec"] for policy in own if _selects(policy["spec"]["podSelector"], pod)]
    if not mine:
        return ""
    rules = [line for spec in mine for line in _rules(spec, pod, world)]
    fixed = ["iif lo accept", "ct state established,related accept", f"ip saddr {{ {world.node} }} accept"]
    body = "\n".join(f"    {rule}" for rule in [*fixed, *rules, "ip protocol icmp accept", "drop"])
    chain = f"  chain in {{\n    type filter hook input priority 0\n{body}\n  }}\n"
    return f"table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\n{chain}}}\n"


def _rules(spec: Object, pod: Object, world: World) -> Iterator[str]:
    _only(spec, "podSelector", "policyTypes", "ingress")
    if spec.get("policyTypes") != ["Ingress"]:
        raise LabError(f"The lab enforces only policies of type Ingress, not {spec.get('policyTypes')}.")
    for rule in spec.get("ingress", ()):
        _only(rule, "from", "ports")
        ports = _ports(rule.get("ports", ()), pod)
        if "from" not in rule:
            yield f"{ports}accept" if ports else "accept"
            continue
        home = pod["metadata"]["namespace"]
        addresses = sorted({address for peer in rule["from"] for address in world.addresses(peer, home)})
        if addresses:
            yield f"ip saddr {{ {', '.join(addresses)} }} {ports}accept"


def _ports(ports: Sequence[Object], pod: Object) -> str:
    numbers = [str(_number(port, pod)) for port in ports]
    return f"tcp dport {{ {', '.join(numbers)} }} " if numbers else ""


def _number(port: Object, pod: Object) -> int:
    """Return the number of a policy's port, which may be a number or a name from the pod's spec."""
    _only(port, "port", "protocol")
    named = {p.get("name"): p["containerPort"] for c in pod["spec"]["containers"] for p in c.get("ports", ())}
    number = named.get(port["port"], port["port"])
    if port.get("protocol", "TCP") != "TCP" or not isinstance(number, int):
        raise LabError(f"The lab cannot enforce port {port}.")
    return number


def _selects(selector: Object, obj: Object) -> bool:
    _only(selector, "matchLabels")
    labels = obj["metadata"].get("labels", {})
    return all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())


def _only(block: Object, *known: str) -> None:
    unknown = sorted(set(block) - set(known))
    if unknown:
        raise LabError(f"The lab does not enforce these fields of a policy: {', '.join(unknown)}.")


class Enforcer:
    """Applies the rules to all pods repeatedly, because policies and addresses change."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._applied: dict[str, str] = {}
        self._failed: dict[str, int] = {}
        self._failed_rounds = 0
        self._stop = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        while not self._stop.is_set():
            try:
                self.once()
                self._failed_rounds = 0
            except Exception as error:  # noqa: BLE001 (a thread that ends silently enforces nothing)
                self._failed_rounds += 1
                if self._failed_rounds > MAX_ATTEMPTS:  # a busy API server may not answer in time
                    self.error = error
                    return
            self._stop.wait(EVERY)

    def stop(self) -> None:
        self._stop.set()

    def once(self) -> None:
        get, network = self._lab.api.get, self._lab.network
        pods = [pod for pod in get("/api/v1/pods")["items"] if _has_network(pod)]
        world = World(pods, get("/api/v1/namespaces")["items"], f"{network.node}, {_gateway(network.pods)}")
        policies = get("/apis/networking.k8s.io/v1/networkpolicies")["items"]
        wanted = {pod["metadata"]["uid"]: (ruleset(pod, policies, world), pod["status"]["podIP"]) for pod in pods}
        for uid, (rules, address) in wanted.items():
            if self._applied.get(f"{uid} {address}", "") != rules:
                self._try(uid, address, rules)

    def _try(self, uid: str, address: str, rules: str) -> None:
        """Apply the rules to a pod. Ignore a few failures: the pod may have been deleted since it was listed. A pod
        whose sandbox was created again has another address, and a network without rules."""
        try:
            inside = ["nsenter", "-t", process_of(self._lab, uid), "-n", "nft"]
            run([*inside, "-f", "-"], text=rules or f"table {TABLE}\ndelete table {TABLE}\n")
        except LabError:
            self._failed[uid] = self._failed.get(uid, 0) + 1
            if self._failed[uid] > MAX_ATTEMPTS:
                raise
        else:
            self._applied[f"{uid} {address}"] = rules
            self._failed.pop(uid, None)


def _has_network(pod: Object) -> bool:
    running = pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    return running and "podIP" in pod["status"]


def _gateway(pods: str) -> str:
    """Return the node's address on the bridge, the first of the range; the kubelet's probes come from it."""
    first, _, _ = pods.partition("/")
    return f"{first.rpartition('.')[0]}.1"


@contextmanager
def enforced(lab: Lab) -> Iterator[None]:
    """Enforce policies within the block, with a short delay."""
    enforcer = Enforcer(lab)
    thread = threading.Thread(target=enforcer.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        enforcer.stop()
        thread.join(30)
        if enforcer.error is not None:  # also if the test failed: nothing was enforced any more
            raise enforcer.error
