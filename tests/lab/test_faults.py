"""The script that chooses faults."""

from hypothesis import given
from hypothesis import strategies as st
from lab.faults import Answer, Die, Drop, Pass, Request, Rule, Script, die_after, parse

CREATE = Request("create", "pods", "ns", "")
READ = Request("get", "pods", "ns", "a")


def test_paths_are_parsed_as_by_the_api_server() -> None:
    cases = {
        ("GET", "/api/v1/namespaces/ns/pods"): Request("list", "pods", "ns"),
        ("GET", "/api/v1/namespaces/ns/pods?watch=true"): Request("watch", "pods", "ns"),
        ("GET", "/api/v1/namespaces/ns/pods/a"): Request("get", "pods", "ns", "a"),
        ("GET", "/api/v1/namespaces/ns/pods/a/log?follow=true"): Request("get", "pods", "ns", "a", "log"),
        ("POST", "/apis/apps/v1/namespaces/ns/deployments"): Request("create", "deployments", "ns"),
        ("PUT", "/apis/apps/v1/namespaces/ns/deployments/d/status"): Request(
            "update", "deployments", "ns", "d", "status"
        ),
        ("PATCH", "/api/v1/nodes/node1"): Request("patch", "nodes", "", "node1"),
        ("DELETE", "/api/v1/namespaces/ns"): Request("delete", "namespaces", "", "ns"),
        ("PUT", "/api/v1/namespaces/ns/finalize"): Request("update", "namespaces", "", "ns", "finalize"),
        ("DELETE", "/api/v1/namespaces/ns/pods"): Request("deletecollection", "pods", "ns"),
        ("GET", "/version"): Request("get", "/version"),
        ("GET", "/apis/apps/v1"): Request("get", "/apis/apps/v1"),
    }
    for (method, target), wanted in cases.items():
        assert parse(method, target) == wanted


def test_name_of_a_new_object_is_read_from_the_body() -> None:
    target = "/api/v1/namespaces/ns/pods"
    assert parse("POST", target, body=b'{"metadata": {"name": "a"}}').name == "a"
    assert parse("POST", target, body=b'{"metadata": {"generateName": "a-"}}').name == ""
    assert parse("POST", target, body=b"k8s\x00protobuf").name == ""


def test_exec_is_not_a_write() -> None:
    assert not parse("POST", "/api/v1/namespaces/ns/pods/a/exec?command=ls").writes
    assert parse("POST", "/api/v1/namespaces/ns/pods/a/binding").writes


def test_first_matching_rule_applies() -> None:
    script = Script([Rule(Answer(409), verb="create", times=1), Rule(Drop(), verb="write")])
    assert [script.decide(CREATE) for _ in range(2)] == [Answer(409), Drop()]
    assert script.decide(READ) == Pass()


def test_client_dies_at_the_nth_write() -> None:
    script = Script([die_after(2)])
    decisions = [script.decide(request) for request in (CREATE, READ, READ, CREATE, CREATE)]
    assert decisions == [Pass(), Pass(), Pass(), Die(), Pass()]


@given(st.binary(max_size=200))
def test_any_body_can_be_parsed(body: bytes) -> None:
    parse("POST", "/api/v1/namespaces/ns/pods", body=body)
    parse("POST", "/api/v1/namespaces/ns/pods", body=b"k8s\x00" + body)


@given(st.integers(), st.lists(st.sampled_from([CREATE, READ]), max_size=50), st.floats(0, 1))
def test_same_seed_gives_the_same_faults(seed: int, requests: list[Request], chance: float) -> None:
    def faults() -> list[object]:
        script = Script([Rule(Answer(500), chance=chance), Rule(Drop(), verb="create", chance=0.5)], seed)
        return [script.decide(request) for request in requests]

    assert faults() == faults()


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 20))
def test_skip_and_times_limit_the_faults(skip: int, times: int, total: int) -> None:
    script = Script([Rule(Answer(429), skip=skip, times=times)])
    struck = sum(script.decide(READ) == Answer(429) for _ in range(total))
    assert struck == max(0, min(times, total - skip))
