"""Clusters over several machines: the parts of them that run on this one."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oars import engines
from oars.base.errors import OarsError, SpecError, UsageError
from oars.base.files import write_private
from oars.client.backend import CreateOptions, Progress, ignore
from oars.client.handles import first_problem
from oars.client.local import LocalBackend, LocalHandle, check_fits
from oars.model import Role
from oars.places.hosts import messages
from oars.places.hosts.messages import HeadState, digest
from oars.places.hosts.worker import fetch
from oars.places.local import ports as local_ports
from oars.places.local.memory import usable_memory
from oars.places.process.link import Link
from oars.plan import desired as plan
from oars.plan.desired import Defaults
from oars.secure.secrets import cluster_secrets, new_token

if TYPE_CHECKING:
    from oars.spec.cluster import ClusterSpec

JOIN_FILES = ("join.token", "join.cert.pem", "join.key.pem")
HEAD_MEMORY = 2 * 2**30


@dataclass(frozen=True)
class HostOptions:
    """How a part of a cluster runs on this machine. `ports`: fixed numbers by name."""

    ports: Mapping[str, int] = field(default_factory=dict)
    are_ports_default: bool = True  # ports of a head that are not given: the engine's usual ones; False: free ones
    tied: bool = True
    progress: Progress = ignore
    modules: str | None = None

    @property
    def create_options(self) -> CreateOptions:
        return CreateOptions(self.tied, self.progress, self.modules)


@dataclass(frozen=True)
class WorkerSize:
    """The workers of one machine. None: an equal share of the machine."""

    workers: int = 1
    cpu: str | None = None
    memory: str | None = None


def token_file(backend: LocalBackend, name: str) -> Path:
    """The join token of a head. It stays when the head ends, so that its workers find it again."""
    return backend.store.root / "join" / name / "join.token"


def create_head(backend: LocalBackend, name: str, spec: ClusterSpec, listen: str, options: HostOptions) -> LocalHandle:
    """The head of a cluster on this machine, which others join at `listen`."""
    host, join_port = messages.split(listen)
    check_host(host)
    backend.check_free(name)
    memory = min(HEAD_MEMORY, usable_memory(backend.environ) * 4 // 5)
    # The shape of a cluster with workers: an engine may let a head without any run tasks itself.
    with_worker = _with(spec, place="local", replicas=None, workers=[{"name": "default", "replicas": 1}])
    defaults = Defaults(memory, memory, dedicated_head=True)
    desired = plan.build(name, with_worker, engines.get(spec.engine), defaults)
    usual = {port.name: port.default for port in desired.shape.head.process.ports}
    fixed = _head_ports(usual, options.ports) if options.are_ports_default else options.ports
    for each, port in fixed.items():
        if port == join_port:
            message = f"Workers cannot join at port {port}: it is the port {each!r} of {spec.engine}."
            hint = f"Choose another port to join at, or another one for the engine: `--port {each}=20001`."
            raise UsageError(message, hint)
    ports = {"join": join_port, **fixed}
    taken = [each for each, port in ports.items() if not local_ports.can_rebind([port], host)]
    if taken:
        listed = ", ".join(f"{ports[each]} ({each})" for each in taken)
        message = f"Ports are in use, or {host} is not an address of this machine: {listed}."
        hint = f"Choose others, such as `--port {taken[0]}=20001`."
        raise OarsError(message, "Choose another port to join at." if "join" in taken else hint)
    private = {**cluster_secrets(name, desired.shape.secrets), **_join_files(backend, name)}
    desired = replace(desired, shape=replace(desired.shape, workers=()))
    link = Link(Role.HEAD, listen, host, fixed)
    return backend.create_planned(with_worker, desired, options.create_options, private, link)


def _head_ports(defaults: Mapping[str, int], given: Mapping[str, int]) -> dict[str, int]:
    unknown = sorted(set(given) - set(defaults))
    if unknown:
        names = ", ".join(sorted(defaults))
        raise UsageError(f"The head has no port {unknown[0]!r}.", f"Its ports are: {names}.")
    return {**defaults, **given}


def _join_files(backend: LocalBackend, name: str) -> dict[str, bytes]:
    """The token and the certificate of the head's join port. They are created once per name."""
    paths = {each: token_file(backend, name).with_name(each) for each in JOIN_FILES}
    if not all(path.exists() for path in paths.values()):
        made = cluster_secrets(name, ("tls",))
        token = messages.JoinToken(new_token(), messages.fingerprint(made["cert.pem"]))
        contents = {
            "join.token": f"{token}\n".encode(),
            "join.cert.pem": made["cert.pem"],
            "join.key.pem": made["key.pem"],
        }
        for each, data in contents.items():
            write_private(paths[each], data)
    return {each: path.read_bytes() for each, path in paths.items()}


async def fetch_head(address: str, token: str) -> HeadState:
    """Raises OSError while the head's machine does not answer, OarsError if it refuses."""
    return await fetch(address, token)


def create_worker(  # noqa: PLR0913 (what a machine needs to know to join)
    backend: LocalBackend, name: str, join: str, token: str, state: HeadState, size: WorkerSize, options: HostOptions,
    host: str = "",
) -> LocalHandle:  # fmt: skip
    """Workers on this machine for the head that `state` describes. `host`: this machine's address."""
    from oars.spec.cluster import ClusterSpec

    backend.check_free(name)
    machine_memory = usable_memory(backend.environ)
    share = machine_memory * 4 // 5 // size.workers
    cpu = size.cpu or max(1, len(os.sched_getaffinity(0)) // size.workers)
    group = {"name": name, "replicas": size.workers, "cpu": cpu, **({"memory": size.memory} if size.memory else {})}
    try:
        head_spec = ClusterSpec.model_validate(state.spec)
    except ValueError as error:
        message = f"The head's spec cannot be read by this version of Oars: {error}."
        raise OarsError(message, "Install the same version of Oars on all machines.") from error
    spec = _with(head_spec, workers=[group])
    check_fits(spec, machine_memory)
    defaults = Defaults(HEAD_MEMORY, share)
    desired = plan.build(name, spec, engines.get(spec.engine), defaults)
    names = {port.name for port in desired.shape.workers[0].process.ports}
    if options.ports and (size.workers > 1 or set(options.ports) - names):
        hint = f"Its ports are: {', '.join(sorted(names))}." if size.workers == 1 else "Start them one by one."
        raise UsageError("These ports cannot be set.", hint)
    link = Link(Role.WORKER, join, host or _address_towards(join), options.ports, digest(dict(state.spec)))
    private = {each: text.encode() for each, text in (state.secrets or {}).items()}
    private["join.token"] = token.strip().encode()
    return backend.create_planned(plan.with_memory(spec, defaults), desired, options.create_options, private, link)


def _with(spec: ClusterSpec, **changes: Any) -> ClusterSpec:
    try:
        return type(spec).model_validate({**spec.model_dump(), **changes})
    except ValueError as error:
        raise SpecError(f"The workers of this machine: {first_problem(error)}.") from error


def check_host(host: str) -> None:
    """Raise UsageError for an address such as 0.0.0.0: members connect to the one that they listen on."""
    try:
        found = socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return  # a name
    if any(ipaddress.ip_address(str(address[0])).is_unspecified for *_, address in found):
        message = f"Other machines cannot connect to {host}: it stands for all addresses of the machine that uses it."
        raise UsageError(message, "Give the address at which other machines reach this one.")


def _address_towards(join: str) -> str:
    """The address of this machine from which it reaches the head's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(messages.split(join))  # sends nothing
        except OSError as error:
            message = f"This machine has no route to {join}: {error.strerror or error}."
            raise OarsError(message, "Give its own address: `--host ADDRESS`.") from error
        found: str = probe.getsockname()[0]
        return found


def host_name(text: str) -> str:
    """A name for this machine's members, from its host name."""
    name = re.sub(r"[^a-z0-9-]+", "-", text.partition(".")[0].lower()).strip("-")
    return name if name not in ("", "head", "default") else f"host-{name or 'one'}"
