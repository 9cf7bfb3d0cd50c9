"""Where a head may be dialled."""

from __future__ import annotations

from typing import Any

from oars.client.tunnels import doors
from oars.model import Port

SERVED = (Port("scheduler", 8786), Port("dashboard", 8787))
USUAL = {"scheduler": 8786, "dashboard": 8787}


def service(*node_ports: int, ingress: tuple[dict[str, str], ...] = (), ip: str = "10.0.0.1") -> dict[str, Any]:
    ports: list[dict[str, Any]] = [{"port": port.default} for port in SERVED]
    for port, number in zip(ports, node_ports, strict=False):
        port["nodePort"] = number
    return {"spec": {"clusterIP": ip, "ports": ports}, "status": {"loadBalancer": {"ingress": list(ingress)}}}


def test_inside_only() -> None:
    assert doors(service(), SERVED, "") == [("10.0.0.1", USUAL)]
    assert doors(service(ip="None"), SERVED, "") == []


def test_a_node_has_ports_of_its_own() -> None:
    first, second = doors(service(30001, 30002), SERVED, "192.168.1.5")
    assert first == ("192.168.1.5", {"scheduler": 30001, "dashboard": 30002})
    assert second == ("10.0.0.1", USUAL)
    assert doors(service(30001), SERVED, "192.168.1.5") == [("10.0.0.1", USUAL)], "one of them is not open there"


def test_a_balancer_comes_first() -> None:
    made = service(ingress=({"hostname": "lb.example.org"}, {"ip": "1.2.3.4"}))
    assert [host for host, _ in doors(made, SERVED, "")] == ["lb.example.org", "1.2.3.4", "10.0.0.1"]
