"""Scheduled pods whose containers do not start: image, configuration, command, volumes, sandbox. Pure."""

from __future__ import annotations

import re

from oars.places.kube.names import CLUSTER, HELPER, Object, root
from oars.places.kube.state.observe import role
from oars.places.kube.why import facts
from oars.places.kube.why.facts import Finding, Severity, Snapshot, spec_section, strip_period

_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
          "RegistryUnavailable", "SignatureValidationFailed"}  # fmt: skip
_CREATE = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError",
           "PreStartHookError", "PostStartHookError"}  # fmt: skip
VOLUME_FAILS = "VolumeFails"
NEVER_RAN = {"StartError", "ContainerCannotRun"}  # reasons of terminated containers that ran no process
_CREATING = {"ContainerCreating", "PodInitializing"}

_CHECK_IMAGE = "Check the name and the tag of the image."
# Pattern in the error of the pull, and the hint; the first match wins. {flags}: the namespace and the registry.
_PULL_HINTS = (
    (re.compile(r"(?i)unauthorized|denied|forbidden|no basic auth|\b401\b|\b403\b"),
     "If the image exists, create a Secret with `kubectl create secret docker-registry registry-login {flags} "
     "--docker-username=USER --docker-password=PASSWORD`, and set "
     "`pod: {{spec: {{imagePullSecrets: [{{name: registry-login}}]}}}}`."),
    (re.compile(r"(?i)toomanyrequests|rate limit|\b429\b"),
     "The registry limits pulls: log in with imagePullSecrets, use a mirror, or wait."),
    (re.compile(r"(?i)x509|certificate|server gave HTTP response"),
     "Make the node trust the certificate of the registry."),
    (re.compile(r"(?i)no such host|dial tcp|i/o timeout|connection refused|network is unreachable|deadline exceeded"),
     "The node cannot reach the registry: check the registry's name, and the node's network and DNS."),
    (re.compile(r"(?i)no match for platform|no matching manifest"),
     "Use an image that was built for the node's processor architecture."),
    (re.compile(r"(?i)not found|manifest unknown|does not exist"), _CHECK_IMAGE),
)  # fmt: skip
_PULL_PREFIX = re.compile(
    r'^(?:Back-off pulling image "[^"]*":? ?)?(?:ErrImagePull: )?(?:rpc error: code = \w+ desc = )?'
    r'(?:failed to pull and unpack image "[^"]*": )?(?:failed to resolve reference "[^"]*": )?'
    r'(?:failed to do request: \w+ "[^"]*": )?'
)
_SANDBOX_PREFIX = re.compile(r"^(?:Failed to create pod sandbox: )?(?:rpc error: code = \w+ desc = )?")
_KEY = re.compile(r"couldn't find key (\S+) in (Secret|ConfigMap) (?:[^/\s]+/)?(\S+)", re.IGNORECASE)
_VOLUME_KEY = re.compile(r"references non-existent (?:secret|config) key: (\S+)")
_OBJECT = re.compile(r'(secret|configmap)s? "([^"]+)" not found', re.IGNORECASE)
_COMMAND = re.compile(
    r'exec: "([^"]+)": (?:executable file not found|stat [^:]*: no such file|permission denied)|'
    r"exec: (/\S+): no such file|exec (/\S+): (?:no such file|exec format error)"
)
_VOLUME = re.compile(r'\S+ failed for volume "([^"]+)" ?: (.*)')
_KINDS = {"secret": "Secret", "configmap": "ConfigMap"}


def find(snapshot: Snapshot, pod: Object, namespace: str) -> Finding | None:
    statuses = facts.container_statuses(pod)
    waiting = [(each.get("state") or {}).get("waiting") or {} for each in statuses]
    for status, wait in zip(statuses, waiting, strict=True):
        reason, message, container = wait.get("reason", ""), str(wait.get("message", "")), str(status["name"])
        if reason in _IMAGE:
            return _image(snapshot, pod, container, reason, message, namespace)
        ended = (status.get("state") or {}).get("terminated") or (status.get("lastState") or {}).get("terminated") or {}
        if ended.get("reason") in NEVER_RAN:
            return _cannot_run(pod, container, str(ended.get("message", "")), namespace)
        if reason in _CREATE:
            return _cannot_run(pod, container, message, namespace)
    if pod["spec"].get("nodeName") and all(wait.get("reason") in _CREATING for wait in waiting):
        return _before_containers(snapshot, pod, namespace)
    return None


def _image(snapshot: Snapshot, pod: Object, container: str, reason: str, message: str, namespace: str) -> Finding:
    image = str(facts.container_spec(pod, container).get("image", ""))  # the status holds the runtime's spelling
    where = facts.container_suffix(pod, container)
    if reason == "InvalidImageName":
        text = f"cannot start{where}: {image!r} is not a valid image name"
        hint = "Correct `image`, for example example.org/team/dask:1."
        return Finding(Severity.IMAGE, "InvalidImageName", text, hint)
    if reason == "ErrImageNeverPull":
        text = f"cannot start{where}: image {image} is not on the node, and imagePullPolicy is Never"
        hint = "Load the image on the node, or set imagePullPolicy to IfNotPresent."
        return Finding(Severity.IMAGE, "ImagePull", text, hint)
    error = strip_period(_PULL_PREFIX.sub("", message))
    if not error:  # during the back-off only the event has it
        prefix = f'Failed to pull image "{image}": '
        events = [str(event.get("message", "")) for event in facts.events_of(snapshot, pod, "Failed")]
        pull = next((each.removeprefix(prefix) for each in reversed(events) if each.startswith(prefix)), "")
        error = strip_period(_PULL_PREFIX.sub("", pull))
    registry = image.partition("/")[0]
    flags = f"-n {namespace}" + (f" --docker-server={registry}" if "." in registry or ":" in registry else "")
    hint = next((hint.format(flags=flags) for pattern, hint in _PULL_HINTS if pattern.search(error)), _CHECK_IMAGE)
    text = f"cannot pull image {image}{where}{f': {error}' if error else ''}"
    return Finding(Severity.IMAGE, "ImagePull", text, hint, merge_key=image)  # the error differs between attempts


def _cannot_run(pod: Object, container: str, message: str, namespace: str) -> Finding:
    start = f"cannot start{facts.container_suffix(pod, container)}"
    if match := _KEY.search(message):
        key, kind, name = match[1], _KINDS[match[2].lower()], match[3]
        hint = f"Add the key to {kind} {name}, or correct the key's name."
        return Finding(Severity.START, "ConfigMissing", f"{start}: {kind} {name} has no key {key}", hint)
    if match := _OBJECT.search(message):
        kind = _KINDS[match[1].lower()]
        text = f"{start}: {kind} {match[2]} does not exist in namespace {namespace}"
        return Finding(Severity.START, "ConfigMissing", text, f"Create the {kind}, or correct its name.")
    if match := _COMMAND.search(message):
        program = next(group for group in match.groups() if group)
        image = facts.container_spec(pod, container).get("image", "")
        hint = f"Correct the command of container {container}."
        if container in (role(pod), HELPER):
            hint = f"Set `image` of {spec_section(pod)} to an image that contains Python and the engine."
        return Finding(Severity.START, "CommandMissing", f"{start}: image {image} has no program {program}", hint)
    message = strip_period(message.partition(" (pod: ")[0])  # the rest repeats the names of pod and container
    if "runAsNonRoot" in message or "non-root policy" in message:
        hint = "Set another user: `pod: {spec: {securityContext: {runAsUser: 1000}}}`."
        return Finding(Severity.START, "RunsAsRoot", f"{start}: {message}", hint)
    text = f"{start}: {message or 'the container runtime reports no reason'}"
    return Finding(Severity.START, "ContainerFails", text, f"Check `pod` of {spec_section(pod)}.")


def _before_containers(snapshot: Snapshot, pod: Object, namespace: str) -> Finding | None:
    """Failures of volumes and of the pod's sandbox appear only in events."""
    reasons = ("FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox")
    events = facts.events_of(snapshot, pod, *reasons)
    if not events:
        return None
    reason, node = events[-1]["reason"], pod["spec"]["nodeName"]
    message = strip_period(" ".join(str(events[-1].get("message", "")).split()))
    if reason == "FailedCreatePodSandBox":
        text = f"cannot start on node {node}: its sandbox cannot be created: {_SANDBOX_PREFIX.sub('', message)}"
        hint = "Check the node's network (CNI) and container runtime. The kubelet retries."
        return Finding(Severity.SANDBOX, "SandboxFails", text, hint, merge_key=node)
    if match := _OBJECT.search(message):
        kind = _KINDS[match[1].lower()]
        text = f"cannot mount a volume: {kind} {match[2]} does not exist in namespace {namespace}"
        is_ours = match[2] == root(str(pod["metadata"]["labels"][CLUSTER]))
        hint = f"Oars creates the {kind} again." if is_ours else f"Create the {kind}, or correct its name."
    elif match := _VOLUME_KEY.search(message):
        text = f"cannot mount a volume: there is no key {match[1]}"
        hint = "Add the key to the Secret or ConfigMap, or correct the key's name."
    else:
        verb = "attach" if reason == "FailedAttachVolume" else "mount"
        match = _VOLUME.match(message)
        text = f"cannot {verb} volume {match[1]}: {match[2]}" if match else f"cannot {verb} a volume: {message}"
        hint = f"Check the volumes of {spec_section(pod)}, and the storage driver of node {node}."
    return Finding(Severity.SANDBOX, VOLUME_FAILS, text, hint)
