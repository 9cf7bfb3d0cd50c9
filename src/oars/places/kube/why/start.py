"""A pod has its node but its containers cannot be started: image, configuration, command, volumes, network. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from oars.places.kube.names import HELPER, Object
from oars.places.kube.why.facts import Finding, Grade, Snapshot, events_of, role, sentence_end, whose

_IMAGE = {
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
    "RegistryUnavailable", "SignatureValidationFailed",
}  # fmt: skip
_CREATE = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError",
           "PreStartHookError", "PostStartHookError"}  # fmt: skip
_NEVER_RAN = {"StartError", "ContainerCannotRun"}
_BEFORE = {"ContainerCreating", "PodInitializing"}

# What the registry, or the way to it, said; the first match wins.
_PULL_TODOS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)unauthorized|denied|forbidden|no basic auth|\b401\b|\b403\b"),
     "If the image exists, give the pods a login: `pod: {spec: {imagePullSecrets: [{name: SECRET}]}}`."),
    (re.compile(r"(?i)toomanyrequests|rate limit|\b429\b"),
     "The registry lets too few pulls through: log in with imagePullSecrets, use a mirror, or wait."),
    (re.compile(r"(?i)x509|certificate|server gave HTTP response"),
     "Let the node trust the registry's certificate."),
    (re.compile(r"(?i)no such host|dial tcp|i/o timeout|connection refused|network is unreachable|deadline exceeded"),
     "The node does not reach that registry: check the registry's name, and the node's network and DNS."),
    (re.compile(r"(?i)no match for platform|no matching manifest"),
     "Use an image that was built for the node's kind of processor."),
    (re.compile(r"(?i)not found|manifest unknown|does not exist"), "Check the image's name and tag."),
)  # fmt: skip
_NOISE = re.compile(
    r'^(?:Back-off pulling image "[^"]*":? ?)?(?:ErrImagePull: )?(?:rpc error: code = \w+ desc = )?'
    r'(?:failed to pull and unpack image "[^"]*": )?(?:failed to resolve reference "[^"]*": )?'
    r'(?:failed to do request: \w+ "[^"]*": )?'
)
_KEY = re.compile(r"couldn't find key (\S+) in (Secret|ConfigMap) (?:[^/\s]+/)?(\S+)", re.IGNORECASE)
_OBJECT = re.compile(r'(secret|configmap)s? "([^"]+)" not found', re.IGNORECASE)
_COMMAND = re.compile(r'exec: "([^"]+)": (?:executable file not found|stat [^:]*: no such file|permission denied)')
_NO_FILE = re.compile(r"exec: (/\S+): no such file|exec (/\S+): (?:no such file|exec format error)")
_VOLUME = re.compile(r'\S+ failed for volume "([^"]+)" ?: (.*)')
_KINDS = {"secret": "Secret", "configmap": "ConfigMap"}


def findings(snapshot: Snapshot, pod: Object, namespace: str) -> Iterable[Finding]:
    statuses = all_statuses(pod)
    for status in statuses:
        found = _of_container(snapshot, pod, status, namespace)
        if found:
            yield found
            return
    waiting = [status for status in statuses if (status.get("state") or {}).get("waiting")]
    never_ran = all(status["state"]["waiting"].get("reason") in _BEFORE for status in waiting)
    if never_ran and len(waiting) == len(statuses) and pod["spec"].get("nodeName"):
        yield from _before(snapshot, pod, namespace)


def all_statuses(pod: Object) -> list[Mapping[str, Any]]:
    """Of init containers, then of containers: in the order in which they start."""
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def which(pod: Object, container: str) -> str:
    """' (container x)', where it is not the member's own."""
    return "" if container == role(pod) else f" (container {container})"


def _of_container(snapshot: Snapshot, pod: Object, status: Mapping[str, Any], namespace: str) -> Finding | None:
    waiting = (status.get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason", ""), str(waiting.get("message", ""))
    if reason in _IMAGE:
        return _image(snapshot, pod, status, reason, message)
    last = (status.get("state") or {}).get("terminated") or (status.get("lastState") or {}).get("terminated") or {}
    if last.get("reason") in _NEVER_RAN:
        return _cannot_run(pod, status, str(last.get("message", "")), namespace)
    if reason in _CREATE:
        return _cannot_run(pod, status, message, namespace)
    return None


# images


def _image(snapshot: Snapshot, pod: Object, status: Mapping[str, Any], reason: str, message: str) -> Finding:
    image = _image_of(pod, status)
    words = _registry_words(message) or _registry_words(_last_pull(snapshot, pod, image))
    where = which(pod, status["name"])
    if reason == "InvalidImageName":
        text = f"cannot start{where}: {image!r} is no name of an image"
        return Finding(Grade.IMAGE, "InvalidImageName", text, "Correct `image`: it reads REGISTRY/NAME:TAG.")
    if reason == "ErrImageNeverPull":
        text = f"cannot start{where}: image {image} is not on the node, and imagePullPolicy is Never"
        hint = "Bring the image to the node, or set imagePullPolicy to IfNotPresent."
        return Finding(Grade.IMAGE, "ImagePull", text, hint)
    hint = next((hint for pattern, hint in _PULL_TODOS if pattern.search(words)), "Check the image's name and tag.")
    # What was said changes from try to try; the image does not.
    text = f"cannot pull image {image}{where}{f': {words}' if words else ''}"
    return Finding(Grade.IMAGE, "ImagePull", text, hint, alike=image)


def _image_of(pod: Object, status: Mapping[str, Any]) -> str:
    """As the description has it; the status may hold the runtime's own spelling."""
    spec = pod["spec"]
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    return next((str(c.get("image", "")) for c in containers if c["name"] == status["name"]), str(status.get("image")))


def _registry_words(message: str) -> str:
    return sentence_end(_NOISE.sub("", message))


def _last_pull(snapshot: Snapshot, pod: Object, image: str) -> str:
    said = [str(event.get("message", "")) for event in events_of(snapshot, pod, "Failed")]
    start = f'Failed to pull image "{image}": '
    return next((message.removeprefix(start) for message in reversed(said) if message.startswith(start)), "")


# configuration and command


def _cannot_run(pod: Object, status: Mapping[str, Any], message: str, namespace: str) -> Finding:
    where = which(pod, status["name"])
    key, missing, command = _KEY.search(message), _OBJECT.search(message), _command(message)
    if key:
        kind = _KINDS[key[2].lower()]
        text = f"cannot start{where}: {kind} {key[3]} has no key {key[1]}"
        return Finding(Grade.START, "ConfigMissing", text, f"Add the key to {kind} {key[3]}, or correct the name.")
    if missing:
        kind = _KINDS[missing[1].lower()]
        text = f"cannot start{where}: {kind} {missing[2]} does not exist in namespace {namespace}"
        return Finding(Grade.START, "ConfigMissing", text, f"Create the {kind}, or correct its name.")
    if command:
        text = f"cannot start{where}: image {_image_of(pod, status)} has no program {command}"
        return Finding(Grade.START, "CommandMissing", text, _missing_program(pod, status["name"]))
    message = message.partition(" (pod: ")[0]  # the rest names pod and container once more
    if "runAsNonRoot" in message or "non-root policy" in message:
        text = f"cannot start{where}: {sentence_end(message)}"
        hint = "Set another user: `pod: {spec: {securityContext: {runAsUser: 1000}}}`."
        return Finding(Grade.START, "RunsAsRoot", text, hint)
    words = sentence_end(message) or "the container runtime does not say why"
    return Finding(Grade.START, "ContainerFails", f"cannot start{where}: {words}", f"Look at `pod` of {whose(pod)}.")


def _missing_program(pod: Object, container: str) -> str:
    if container in (role(pod), HELPER):
        return f"Set `image` of {whose(pod)} to an image that has the engine (and Python) in it."
    return f"Correct the command of container {container}."


def _command(message: str) -> str:
    found = _COMMAND.search(message) or _NO_FILE.search(message)
    return next((group for group in found.groups() if group), "") if found else ""


# what comes before the first container


def _before(snapshot: Snapshot, pod: Object, namespace: str) -> Iterable[Finding]:
    """Kubernetes tells of volumes and of the pod's network only in events."""
    told = events_of(snapshot, pod, "FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox")
    if not told:
        return
    event = told[-1]
    message = sentence_end(" ".join(str(event.get("message", "")).split()))
    if event["reason"] == "FailedCreatePodSandBox":
        words = message.removeprefix("Failed to create pod sandbox: ")
        words = re.sub(r"^rpc error: code = \w+ desc = ", "", words)
        text = f"cannot start on node {pod['spec']['nodeName']}: no network or sandbox can be made for it: {words}"
        hint = "Look at the node's network (CNI) and container runtime; the kubelet tries again."
        yield Finding(Grade.SANDBOX, "SandboxFails", text, hint, alike=pod["spec"]["nodeName"])
        return
    missing, key = _OBJECT.search(message), re.search(r"references non-existent (?:secret|config) key: (\S+)", message)
    if missing:
        kind = _KINDS[missing[1].lower()]
        text = f"cannot mount a volume: {kind} {missing[2]} does not exist in namespace {namespace}"
        yield Finding(Grade.SANDBOX, "VolumeFails", text, f"Create the {kind}, or correct its name.")
    elif key:
        yield Finding(Grade.SANDBOX, "VolumeFails", f"cannot mount a volume: there is no key {key[1]}",
                      "Add the key to the Secret or ConfigMap, or correct its name.")  # fmt: skip
    else:
        doing = "attach" if event["reason"] == "FailedAttachVolume" else "mount"
        hint = f"Look at the volumes of {whose(pod)}, and at the storage driver of node {pod['spec']['nodeName']}."
        volume = _VOLUME.match(message)
        text = f"cannot {doing} volume {volume[1]}: {volume[2]}" if volume else f"cannot {doing} a volume: {message}"
        yield Finding(Grade.SANDBOX, "VolumeFails", text, hint)
