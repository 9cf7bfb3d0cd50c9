"""Explanations on Kubernetes, from objects and error responses recorded from a real cluster (1.34)."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oars.engines.dask import shape as dask
from oars.engines.ray import shape as ray
from oars.kube.errors import ApiError
from oars.model import Cause
from oars.places.kube.state.cache import trimmed_deployment, trimmed_pod
from oars.places.kube.why.api_errors import cause_of, explain_response
from oars.places.kube.why.deaths import containers_with_log, explain_pod_log
from oars.places.kube.why.explain import causes
from oars.places.kube.why.facts import Snapshot
from oars.places.kube.why.quantities import parse, pod_requests

DATA = Path(__file__).parent / "data"
RESPONSES = json.loads((DATA / "refusals.json").read_text())


def recorded(case: str) -> Snapshot:
    data = json.loads((DATA / f"{case}.json").read_text())
    logs = data.pop("log_tails", {}).items()
    tails = {(pod, container): tuple(lines) for pod, each in logs for container, lines in each.items()}
    return Snapshot(**data, log_tails=tails)


def only(snapshot: Snapshot) -> Cause:
    (found,) = causes(snapshot, "team")
    return found


# The recording; the reason; parts of the message; a part of the hint.
CASES: list[tuple[str, str, tuple[str, ...], str]] = [
    # pods that cannot be created
    ("quota_needs_limits", "QuotaExceeded", ("default (1 of 1)", "limits.cpu", "container worker"), "limits: {cpu"),
    ("limit_range", "LimitRange", ("Range team", "memory usage per Container is 1Gi, but limit is 2Gi"), "change"),
    ("pod_security", "PodSecurity", ("The head", "restricted", "hostNetwork=true", 'volume "spill"'), "`pod`"),
    ("policy", "AdmissionDenied", ("policy registries.example.org", "images must come from"), "policy"),
    ("webhook_denies", "AdmissionDenied", ("labels.guard.example.org", "needs the label cost-centre"), "webhook"),
    ("webhook_down", "WebhookFails", ("pods.guard.example.org", 'service "guard" not found'), "repair"),
    ("service_account", "ServiceAccountMissing", ("ServiceAccount nobody", "namespace team"), "create serviceaccount"),
    ("priority_class", "PriorityClassMissing", ("PriorityClass urgent",), "priorityClassName"),
    # pods that cannot be scheduled
    ("unschedulable_no_nodes", "Unschedulable", ("The head", "the cluster has no nodes"), "Add a node"),
    ("unschedulable_cpu", "Unschedulable", ("10 cpu", "most: 8, node big", "gpu=present"), "at most 8 `cpu`"),
    ("unschedulable_memory", "Unschedulable",
     ("(3 of 5)", "2 cpu, 12Gi memory", "node big: 6 of 8 cpu, 4Gi of 16Gi memory"), "fewer workers"),
    ("unschedulable_gpu", "Unschedulable", ("4 nvidia.com/gpu", "most: 2, node gpu-1"), "at most 2 `gpu`"),
    ("unschedulable_taint", "Unschedulable", ("node gpu-1: taint nvidia.com/gpu=present:NoSchedule",),
     "Add a toleration to worker group gpu: `pod: {spec: {tolerations: [{key: nvidia.com/gpu, operator: Exists}]}}`"),
    ("unschedulable_selector", "Unschedulable", ("no node has the label disk=nvme",), "kubectl label node"),
    ("unschedulable_affinity", "Unschedulable", ("(3 of 5)", "its affinity rules exclude 2 nodes"), "relax"),
    ("unschedulable_volume", "Unschedulable", ("PersistentVolumeClaim data does not exist",), "Create it"),
    ("unschedulable_claim", "Unschedulable", ("its PersistentVolumeClaim data is not bound",), "describe pvc data"),
    ("sidecar_asks", "Unschedulable", ("3.01 cpu", "most: 2, node node1"), "at most 2 `cpu`"),
    ("node_full", "Unschedulable", ("0.8 cpu", "node node1: 0.4 of 2 cpu"), "fewer workers"),
    # containers that do not start
    ("image_unreachable", "ImagePull", ("(3 of 3)", "registry.example.org/team/dask:9", "network is unreachable"),
     "cannot reach"),
    ("image_invalid", "InvalidImageName", ("The head", "'Team/Dask:1:2'"), "for example"),
    ("image_never", "ImagePull", ("oars.lab/nothing:1", "Never"), "IfNotPresent"),
    ("sidecar_image", "ImagePull", ("The head", "(container oars)"), "registry"),
    ("secret_missing", "ConfigMissing", ("Secret login does not exist in namespace team",), "Create the Secret"),
    ("key_missing", "ConfigMissing", ("ConfigMap settings has no key threads",), "Add the key"),
    ("runs_as_root", "RunsAsRoot", ("breaks non-root policy.",), "runAsUser"),
    ("command_missing", "CommandMissing", ("image oars.lab/dask:2026.8.0 has no program ray",), "contains Python"),
    ("command_path_missing", "CommandMissing", ("no program /opt/nothing/bin/python",), "`image` of the head"),
    ("mount_missing", "VolumeFails", ("Secret certificates does not exist",), "Create the Secret"),
    ("mount_key_missing", "VolumeFails", ("no key threads",), "Add the key"),
    ("mount_path", "VolumeFails", ("volume v: hostPath type check failed: /no/such/spill",), "node node1"),
    ("sandbox", "SandboxFails", ("node node1", 'no runtime for "runsc"'), "CNI"),
    # containers that die
    ("crash_loop", "CrashLoop", ("(2 of 2)", "3 times; exit code 3"), "oars logs demo demo-worker"),
    ("crash_once", "HeadLost", ("The head died (exit code 1); all results of the cluster are lost.",),
     "`oars logs demo head -n team`"),
    ("module_missing", "CrashLoop", ("the Python module pandas_of_mine is missing",), "use an image"),
    ("no_dns", "NoDns", ("DNS cannot resolve the name demo-head",), "kube-dns"),
    ("oom", "OOMKilled", ("(2 of 2)", "the limit is 64Mi"), "more `memory` than 64Mi, or process less"),
    ("oom_back", "OOMKilled", ("The head", "the limit is 64Mi", "and restarted; all results of the cluster are lost"),
     "more `memory`"),
    ("init_fails", "CrashLoop", ("container fetch; 2 times; exit code 4",), "oars logs demo head -c fetch -n team`"),
    ("init_oom", "OOMKilled", ("container fetch; the limit is 64Mi",), "Give container fetch more memory in `pod`"),
    ("sidecar_dies", "CrashLoop", ("Worker pod", "container agent;", "exit code 5"), " -c agent -n team`"),
    ("liveness", "Replaced", ("liveness probe", "restarted: raylet is dead"), "log"),
    ("readiness", "ProbeFails", ("The head", "readiness probe", "8787/health", "connection refused"), "log"),
    # pods that Kubernetes removed
    ("evicted", "Evicted", ("node node1", 'EmptyDir volume "v" exceeds the limit "1Mi".'), "ephemeral-storage"),
    ("preempted", "Preempted", ("demo-worker-a", "higher priority", "node big"), "priorityClassName"),
    ("drained", "Drained", ("demo-worker-a", "kubectl drain"), "another node"),
    ("tainted", "NodeTainted", ("demo-worker-a", "taint", "node big"), "toleration"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "reason", "words", "hint"), CASES, ids=[case for case, *_ in CASES])
def test_recorded_failure_has_one_cause_with_message_and_hint(
    case: str, reason: str, words: tuple[str, ...], hint: str
) -> None:
    found = only(recorded(case))
    assert found.reason == reason
    assert [word for word in words if word not in found.message] == []
    assert hint in found.hint
    assert found.message.endswith(".") and "\n" not in found.message


@pytest.mark.parametrize(("case", "reason", "words", "hint"), CASES, ids=[case for case, *_ in CASES])
def test_trimmed_objects_are_enough_to_explain_failure(
    case: str, reason: str, words: tuple[str, ...], hint: str
) -> None:
    found = only(cached(recorded(case)))
    assert found.reason == reason
    assert [word for word in words if word not in found.message] == []
    assert hint in found.hint


def cached(full: Snapshot) -> Snapshot:
    """The snapshot with objects trimmed as in the informers' caches."""
    pods, deployments = map(trimmed_pod, full.pods), map(trimmed_deployment, full.deployments)
    return replace(full, pods=[*pods], deployments=[*deployments])


RECORDINGS = sorted(path.stem for path in DATA.glob("*.json") if path.stem != "refusals")


@pytest.mark.parametrize("case", RECORDINGS)
def test_trimmed_objects_have_the_same_causes_as_full_ones(case: str) -> None:
    full = recorded(case)
    for whole in (full, replace(full, pods=[])):
        assert causes(cached(whole), "team") == causes(whole, "team")
    assert [containers_with_log(pod) for pod in cached(full).pods] == [containers_with_log(pod) for pod in full.pods]
    assert [pod_requests(pod) for pod in cached(full).pods] == [pod_requests(pod) for pod in full.pods]


def test_every_recording_is_used() -> None:
    elsewhere = {"refusals", "healthy", "quota", "node_lost", "rollout_stuck", "replicaset_refused"}
    assert {path.stem for path in DATA.glob("*.json")} == {case for case, *_ in CASES} | elsewhere


def test_healthy_cluster_has_no_causes() -> None:
    assert causes(recorded("healthy"), "team") == ()
    assert causes(Snapshot(), "team") == ()


def test_worker_that_ends_normally_explains_itself_only_while_there_is_a_head() -> None:
    """Workers end with exit code 0 when their head is replaced."""
    text = json.dumps(json.loads((DATA / "crash_loop.json").read_text()))
    data = json.loads(text.replace('"exitCode": 3', '"exitCode": 0'))
    workers = [pod for pod in data["pods"] if pod["metadata"]["labels"]["oars.dev/group"] != "head"]
    head = next(pod for pod in recorded("healthy").pods if pod["metadata"]["labels"]["oars.dev/group"] == "head")
    assert causes(Snapshot(pods=workers), "team") == ()
    assert "exit code 0" in only(Snapshot(pods=[head, *workers])).message


def test_missing_secret_of_the_cluster_itself_needs_no_action() -> None:
    text = json.dumps(json.loads((DATA / "mount_missing.json").read_text()))
    data = json.loads(text.replace("certificates", "demo-oars"))
    found = only(Snapshot(**{key: value for key, value in data.items() if key != "log_tails"}))
    assert "Secret demo-oars does not exist" in found.message
    assert found.hint == "Oars creates the Secret again."


def test_most_severe_cause_comes_first_and_head_before_workers() -> None:
    quota, nodes = causes(recorded("quota"), "team")
    assert quota.reason == "QuotaExceeded"
    assert "group default (1 of 3)" in quota.message
    assert "requests.cpu: 1 requested, 2 of 2 used" in quota.message
    assert nodes.reason == "Unschedulable" and "(2 of 2)" in nodes.message
    both = Snapshot(pods=[*recorded("image_unreachable").pods, *recorded("secret_missing").pods])
    assert [cause.reason for cause in causes(both, "team")] == ["ConfigMissing", "ImagePull"]


def test_lost_node_is_reported_with_and_without_permission_to_list_nodes() -> None:
    snapshot = recorded("node_lost")
    head, worker = causes(snapshot, "team")
    assert head.reason == worker.reason == "NodeLost"
    assert "The head" in head.message and "node big does not respond (Kubelet stopped posting" in head.message
    assert {c.reason for c in causes(replace(snapshot, nodes=None), "team")} == {"NodeLost"}


def test_scheduler_message_is_used_without_permission_to_list_nodes() -> None:
    cpu = only(replace(recorded("unschedulable_cpu"), nodes=None))
    assert "too little cpu is free (2 nodes)" in cpu.message and "1 node: taint is not tolerated" in cpu.message
    selector = only(replace(recorded("unschedulable_selector"), nodes=None))
    assert "2 nodes without the label disk=nvme" in selector.message


def test_taint_is_read_from_message_of_older_scheduler() -> None:
    snapshot = replace(recorded("unschedulable_taint"), nodes=None)
    message = (
        "0/3 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: present}, 2 Insufficient "
        "nvidia.com/gpu. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    )
    pod = json.loads(json.dumps(snapshot.pods[0]))
    pod["status"]["conditions"][0]["message"] = message
    found = only(replace(snapshot, pods=[pod]))
    assert "nvidia.com/gpu=present" in found.message and "key: nvidia.com/gpu" in found.hint


def test_stalled_rollout_is_reported_only_if_nothing_else_explains_it() -> None:
    snapshot = recorded("rollout_stuck")
    snapshot = replace(snapshot, stalled=snapshot.deployments)
    assert only(snapshot).reason == "Unschedulable"
    stuck = only(replace(snapshot, pods=[]))
    assert stuck.reason == "RolloutStuck" and "Deployment demo-head exists, but Kubernetes does not" in stuck.message


def test_refused_replicaset_of_stalled_deployment_is_explained_by_its_event() -> None:
    snapshot = recorded("replicaset_refused")
    assert causes(snapshot, "team") == ()  # the controller may still act
    refused = only(replace(snapshot, stalled=snapshot.deployments))
    assert refused.reason == "QuotaExceeded"
    assert refused.message.startswith("The head cannot be created: quota none of namespace team is exceeded")
    assert "count/replicasets.apps: 1 requested, 0 of 0 used" in refused.message


def test_events_of_past_refusal_are_ignored_without_condition() -> None:
    snapshot = recorded("policy")
    done = json.loads(json.dumps([*snapshot.deployments]))
    done[0]["status"]["conditions"] = []
    assert causes(replace(snapshot, deployments=done), "team") == ()


def test_evicted_pod_is_ignored_once_replaced() -> None:
    evicted, healthy = recorded("evicted"), recorded("healthy")
    assert causes(replace(healthy, pods=[*healthy.pods, *evicted.pods[:1]]), "team") == ()


def test_failed_readiness_probe_of_starting_member_is_ignored() -> None:
    snapshot = recorded("readiness")
    early = [{**event, "lastTimestamp": event["firstTimestamp"]} for event in snapshot.events]
    assert causes(replace(snapshot, events=early), "team") == ()


def test_terminating_pod_is_not_explained() -> None:
    pod = json.loads(json.dumps(recorded("crash_loop").pods[0]))
    pod["metadata"]["deletionTimestamp"] = "2026-11-16T03:00:00Z"
    assert causes(Snapshot(pods=[pod]), "team") == ()
    assert containers_with_log(pod) == ()


@pytest.mark.parametrize(
    ("case", "needed"),
    [("crash_loop", ("worker",)), ("oom", ("worker",)), ("liveness", ("worker",)), ("init_fails", ("fetch",)),
     ("init_oom", ("fetch",)), ("sidecar_dies", ("agent",)), ("command_missing", ()), ("image_unreachable", ()),
     ("healthy", ()), ("evicted", ()), ("secret_missing", ())],
)  # fmt: skip
def test_log_of_dead_container_is_needed(case: str, needed: tuple[str, ...]) -> None:
    assert containers_with_log(recorded(case).pods[0]) == needed


@pytest.mark.parametrize(
    ("case", "lines"),
    [("crash_loop", ("starting", "ValueError: bad --nthreads")), ("init_oom", ("fetching",)),
     ("sidecar_dies", ("agent starts", "no route to the collector"))],
)  # fmt: skip
def test_cause_has_last_log_lines_of_dead_container(case: str, lines: tuple[str, ...]) -> None:
    assert only(recorded(case)).lines == lines


def changed(pod: dict[str, Any], container: str, **status: Any) -> dict[str, Any]:
    """A copy of the pod with another status of one container."""
    other: dict[str, Any] = json.loads(json.dumps(pod))
    for each in (*other["status"].get("initContainerStatuses", ()), *other["status"].get("containerStatuses", ())):
        if each["name"] == container:
            each.update(status)
    return other


def test_dead_container_is_reported_before_restarted_one() -> None:
    [pod] = recorded("sidecar_dies").pods
    ended = {"terminated": {"exitCode": 3, "startedAt": "2026-11-16T03:00:00Z"}}
    back = {"ready": True, "restartCount": 1, "lastState": ended, "state": {"running": {}}}
    worker = changed(changed(pod, "agent", **back), "worker", ready=False, restartCount=4, lastState=ended,
                     state={"waiting": {"reason": "CrashLoopBackOff"}})  # fmt: skip
    name = pod["metadata"]["name"]
    tails = {(name, "agent"): ("of the agent",), (name, "worker"): ("of the worker",)}
    found = only(Snapshot(pods=[worker], log_tails=tails))
    assert found.reason == "CrashLoop" and "agent" not in found.message and found.lines == ("of the worker",)
    assert containers_with_log(worker) == ("agent", "worker")


def test_failed_probe_names_its_container() -> None:
    """The event names the container. A probe that passes by now does not explain an unready pod."""
    snapshot = recorded("readiness")
    [pod], name = snapshot.pods, snapshot.pods[0]["metadata"]["name"]
    status = pod["status"]["containerStatuses"][0]
    pod = {**pod, "status": {**pod["status"], "containerStatuses": [status, {**status, "name": "agent"}]}}
    about = {"involvedObject": {**snapshot.events[0]["involvedObject"], "fieldPath": "spec.containers{agent}"}}
    events = [{**event, **about} for event in snapshot.events]
    tails = {(name, "agent"): ("of the agent",), (name, "head"): ("of the head",)}
    found = only(Snapshot(pods=[pod], events=events, log_tails=tails))
    assert "readiness probe (container agent): " in found.message and found.hint.endswith(" head -c agent -n team`.")
    assert found.lines == ("of the agent",)
    assert causes(Snapshot(pods=[changed(pod, "agent", ready=True)], events=events), "team") == ()


# Output of the engines' own code.
RAY = """RuntimeError: Version mismatch: The cluster was started with:
    Ray: 2.60.0
    Python: 3.11.7
This process on node 10.0.0.7 was started with:
    Ray: 2.9.3
    Python: 3.11.5
"""
DASK = """Mismatched versions found

+---------+----------+-----------+---------+
| Package | Worker   | Scheduler | Workers |
+---------+----------+-----------+---------+
| dask    | 2026.1.0 | 2026.8.0  | None    |
+---------+----------+-----------+---------+
"""


@pytest.mark.parametrize(
    ("log", "reason", "words"),
    [
        (RAY, "VersionMismatch", "head: Ray 2.60.0, Python 3.11.7; here: Ray 2.9.3, Python 3.11.5"),
        (DASK, "VersionMismatch", "dask: head 2026.8.0, here 2026.1.0"),
        ("OSError: Timed out trying to connect to tcp://demo-head:8786: [Errno -2] Name or service not known", "NoDns",
         "the name demo-head"),
        ("OSError: [Errno 28] No space left on device", "CrashLoop", "the disk is full"),
        ("Usage: dask worker\nError: No such option: --nanny-port", "CrashLoop", "option --nanny-port"),
        ("INFO: token authentication is on", "CrashLoop", "exit code 3)."),
    ],
)  # fmt: skip
def test_log_explains_death(log: str, reason: str, words: str) -> None:
    snapshot = recorded("crash_loop")
    pod = snapshot.pods[0]
    tails = {(pod["metadata"]["name"], "worker"): tuple(log.splitlines())}
    patterns = (*dask.LOG_PATTERNS, *ray.LOG_PATTERNS)
    found = only(Snapshot(pods=[pod], log_tails=tails, log_patterns=patterns))
    assert found.reason == reason and words in found.message


def test_log_explains_running_member_that_cannot_find_the_head() -> None:
    pod = recorded("readiness").pods[0]
    tails = {(pod["metadata"]["name"], "head"): ("socket.gaierror: [Errno -3] Temporary failure in name resolution",)}
    assert only(Snapshot(pods=[pod], log_tails=tails)).reason == "NoDns"


LONG = ("a", "1", "://", "a.", " ", "| ", "permission denied: ", "DNS resolution failed for ")


@pytest.mark.parametrize("piece", LONG)
def test_long_lines_are_explained_at_once(piece: str) -> None:
    """A program prints what it likes, and the operator reads it in its event loop."""
    patterns = (*dask.LOG_PATTERNS, *ray.LOG_PATTERNS)
    lines = (piece * (30_000 // len(piece)),) * 19 + ("tcp://demo-head:8786: Name or service not known",)
    start = time.process_time()
    meaning = explain_pod_log(lines, patterns, "lab")
    assert time.process_time() - start < 1
    assert meaning is not None and meaning.reason == "NoDns"


@pytest.mark.parametrize(
    "piece",
    ["a", "1", "a:[", "exceeded quota: a, requested: a, used: a, ", 'User "a" cannot ', 'user "', "maximum a usage "],
)
@pytest.mark.parametrize("end", ["", '" attempting to grant RBAC permissions not currently held:\n{APIGroups:'])
def test_long_error_is_explained_at_once(piece: str, end: str) -> None:
    """The API server quotes what an author wrote into a field, of any length."""
    value = piece * (1_000_000 // len(piece))
    message = f'Deployment.apps "demo-head" is invalid: spec.a: Invalid value: "{end}{value}}}": must be short'
    details = {"kind": "Deployment", "name": "demo-head", "causes": [{"field": "spec.a", "message": message}]}
    start = time.process_time()
    found = cause_of(ApiError(422, {"reason": "Invalid", "message": message, "details": details}))
    assert time.process_time() - start < 1
    assert len(found.message) < 20_000


# Errors of registries; the lab has none.
@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("pull access denied, repository does not exist or may require authorization", "imagePullSecrets"),
        ("unexpected status from HEAD request: 401 Unauthorized",
         "docker-registry registry-login -n team --docker-server=registry.example.org --docker-username="),
        ("example.org/team/dask:9: not found", "Check the name and the tag"),
        ("429 Too Many Requests - toomanyrequests: You have reached your pull rate limit", "mirror"),
        ("tls: failed to verify certificate: x509: certificate signed by unknown authority", "certificate"),
        ("no match for platform in manifest: not found", "processor"),
    ],
)  # fmt: skip
def test_hint_for_failed_pull_depends_on_error_of_registry(words: str, hint: str) -> None:
    pod = json.loads(json.dumps(recorded("image_unreachable").pods[0]))
    waiting = pod["status"]["containerStatuses"][0]["state"]["waiting"]
    waiting["message"] = f'Back-off pulling image "x": ErrImagePull: rpc error: code = NotFound desc = {words}'
    found = only(Snapshot(pods=[pod]))
    assert found.message.endswith(f"team/dask:9: {words}.") and hint in found.hint


@pytest.mark.parametrize(
    ("case", "reason", "words", "hint"),
    [
        ("rbac_list", "RightMissing", "system:serviceaccount:refuse:default may not list pods in namespace refuse",
         '`- {apiGroups: [""], resources: ["pods"], verbs: ["list"]}`'),
        ("rbac_create", "RightMissing", "alice may not create deployments of API group apps",
         '`- {apiGroups: ["apps"], resources: ["deployments"], verbs: ["create"]}`'),
        ("rbac_patch", "RightMissing", "alice may not patch", "`oars rbac -n refuse` prints"),
        ("rbac_subresource", "RightMissing", "get pods/log", 'resources: ["pods/log"], verbs: ["get"]'),
        ("rbac_exec", "RightMissing", "create pods/exec", 'resources: ["pods/exec"], verbs: ["create"]'),
        ("rbac_cluster", "RightMissing", "list nodes in the whole cluster", "ClusterRole"),
        ("rbac_all_namespaces", "RightMissing", "computeclusters of API group oars.dev", 'apiGroups: ["oars.dev"]'),
        ("rbac_grant", "RightMissing", "bob may not gra", '- {apiGroups: [""], resources: ["nodes"], verbs: ["get"]}'),
        ("unauthorized", "Unauthorized", "401", "log in"),
        ("quota", "QuotaExceeded", "team of the namespace is exceeded (count/deployments.apps: 1", "describe quota"),
        ("limit_range", "LimitRange", "memory usage per Container is 1Gi, but limit is 2Gi", "limitrange"),
        ("pod_security", "PodSecurity", "pods/demo-driver", "`pod`"),
        ("policy", "AdmissionDenied", "images must come from", "policy"),
        ("webhook", "AdmissionDenied", "cost-centre", "webhook"),
        ("webhook_down", "WebhookFails", "pods.guard.example.org", "repair"),
        ("namespace_missing", "NamespaceMissing", "nowhere does not exist", "kubectl create namespace nowhere"),
        ("namespace_ending", "NamespaceEnding", "namespace ending is being deleted", "Wait"),
        ("object_missing", "NotFound", 'services "demo" not found', "again"),
        ("kind_missing", "KindMissing", "does not know this kind", "oars operator install"),
        ("exists", "AlreadyExists", "configmaps/a already exists", "another name"),
        ("conflict", "Conflict", "configmaps/a was changed", "retries"),
        ("apply_conflict", "FieldConflict", '.data.x: conflict with "kubectl-client-side-apply"', "only one"),
        ("invalid", "Invalid", "containers[0].image: Required value", "fields"),
        ("unknown_field", "Invalid", 'unknown field "spec.template.spec.containers[0].imagee"', "fields"),
    ],
)  # fmt: skip
def test_error_response_is_explained_with_hint(case: str, reason: str, words: str, hint: str) -> None:
    status: dict[str, Any] = RESPONSES[case]
    found = explain_response(status["code"], status.get("reason", ""), status["message"], status.get("details", {}))
    assert found.reason == reason
    assert words in found.message and hint in found.hint


def test_unknown_error_response_keeps_its_message() -> None:
    assert explain_response(503, "", "etcd is away", {}).message == "The API server answered 503: etcd is away."
    assert explain_response(429, "TooManyRequests", "slow down", {}).reason == "TooManyRequests"


@pytest.mark.parametrize(
    ("written", "number"), [("500m", 0.5), ("2", 2.0), ("1Gi", 2.0**30), ("1e3", 1000.0), ("5k", 5000.0), ("?", 0.0)]
)
def test_quantity_is_parsed(written: str, number: float) -> None:
    assert parse(written) == number


def test_requests_are_counted_as_by_the_scheduler() -> None:
    def container(cpu: str, **more: str) -> dict[str, Any]:
        return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}

    def cpu(*inits: dict[str, Any], **spec: Any) -> float:
        return pod_requests({"spec": {"containers": [container("1")], "initContainers": [*inits], **spec}})["cpu"]

    sidecar = container("3", restartPolicy="Always")
    assert cpu() == 1.0
    assert (
        cpu(container("500m")) == 1.0 and cpu(container("2")) == 2.0
    )  # an init container ends before the others start
    assert cpu(sidecar) == 4.0  # a sidecar keeps running
    assert cpu(sidecar, container("2")) == 5.0 and cpu(container("2"), sidecar) == 4.0
    assert cpu(overhead={"cpu": "250m"}) == 1.25
