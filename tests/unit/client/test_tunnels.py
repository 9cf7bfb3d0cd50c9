"""Endpoints of a Service that may be reachable from a client."""

from __future__ import annotations

from typing import Any

from oars.client.tunnels import endpoints
from oars.model import Port

SERVED = (Port("scheduler", 8786), Port("dashboard", 8787))
USUAL = {"scheduler": 8786, "dashboard": 8787}


def service(*node_ports: int, ingress: tuple[dict[str, str], ...] = (), ip: str = "10.0.0.1") -> dict[str, Any]:
    ports: list[dict[str, Any]] = [{"port": port.default} for port in SERVED]
    for port, number in zip(ports, node_ports, strict=False):
        port["nodePort"] = number
    return {"spec": {"clusterIP": ip, "ports": ports}, "status": {"loadBalancer": {"ingress": list(ingress)}}}


def test_cluster_ip_is_the_only_endpoint() -> None:
    assert endpoints(service(), SERVED, "") == [("10.0.0.1", USUAL)]
    assert endpoints(service(ip="None"), SERVED, "") == []


def test_node_ports_come_before_the_cluster_ip() -> None:
    first, second = endpoints(service(30001, 30002), SERVED, "192.168.1.5")
    assert first == ("192.168.1.5", {"scheduler": 30001, "dashboard": 30002})
    assert second == ("10.0.0.1", USUAL)
    assert endpoints(service(30001), SERVED, "192.168.1.5") == [("10.0.0.1", USUAL)], "one port has no node port"


def test_load_balancer_comes_first() -> None:
    made = service(ingress=({"hostname": "lb.example.org"}, {"ip": "1.2.3.4"}))
    assert [host for host, _ in endpoints(made, SERVED, "")] == ["lb.example.org", "1.2.3.4", "10.0.0.1"]
