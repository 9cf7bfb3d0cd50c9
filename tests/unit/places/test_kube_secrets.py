"""What is not watched: a Secret or ConfigMap that somebody deletes, and certificates that expire."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from oars.base.errors import EngineUnreachable
from oars.kube.errors import ApiError
from oars.model import HEAD, Cause, MemberState
from oars.places.base import PlaceError
from oars.places.http import parse_reply
from oars.places.kube import names
from oars.places.kube.evidence import Evidence
from oars.places.kube.place import CHECK_SECONDS
from oars.places.kube.render.fingerprint import Fingerprint
from oars.places.kube.render.values import SECRETS
from oars.places.kube.state.secrets import READ_FILES, RESTORE_SECONDS, content, make_secrets
from oars.places.kube.why.start import VOLUME_FAILS
from oars.places.kube.wire import KubeWire
from oars.secure.expiry import DAY, expires_at
from tests.unit.places.clusters import cluster
from tests.unit.places.test_kube_observe import Object
from tests.unit.places.world import World

SECRET = ("Secret", "demo-oars")
FILES = ("ca.pem", "cert.pem", "key.pem", "control")


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def mounted(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The files of the head's pod, as its helper sends them; empty: it does not answer."""
    files = dict(world.stored[SECRET]["data"])

    async def ask(_: KubeWire, script: str, request: Mapping[str, Any], **__: Any) -> dict[str, str]:
        if not files:
            raise EngineUnreachable("no answer in time")
        return files

    monkeypatch.setattr(KubeWire, "ask", ask)
    return files


def one_pass(world: World) -> list[str]:
    """Reasons of all causes and remarks."""
    observed = world.observe()
    world.ensure_head()
    return [cause.reason for cause in (*observed.causes, *observed.remarks)]


def head_annotation(world: World) -> str | None:
    annotations: Object = world.running["demo-head"]["spec"]["template"]["metadata"].get("annotations", {})
    return annotations.get(names.SECRET_EPOCH)


def head_is_replaced(world: World) -> bool:
    head = world.observe().member(HEAD)
    return head is not None and head.state is MemberState.WAITING


def later(world: World, seconds: float = CHECK_SECONDS + 1) -> None:
    world.now += seconds


def lose_secret(world: World) -> Mapping[str, bytes]:
    """Somebody deletes the Secret, and time passes; its content."""
    assert one_pass(world) == []
    before = content(world.stored.pop(SECRET))
    world.writes.clear()
    later(world)
    return before


def test_script_in_the_helper_sends_the_mounted_files(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()  # as the kubelet mounts them
    for name, data in (("token", b"a"), ("key.pem", b"\x00\xff")):
        (tmp_path / "..data" / name).write_bytes(data)
        (tmp_path / name).symlink_to(Path("..data") / name)
    program = READ_FILES.replace(SECRETS, str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], input="{}\n", capture_output=True, text=True, check=True)
    sent = parse_reply(done.stdout.encode(), "it")
    assert {name: base64.b64decode(text) for name, text in sent.items()} == {"token": b"a", "key.pem": b"\x00\xff"}


# a lost Secret


def test_lost_secret_is_restored_from_the_running_head(world: World, mounted: dict[str, str]) -> None:
    before = lose_secret(world)
    assert one_pass(world) == ["SecretLost"], "the status says so"
    assert world.writes == ["create Secret/demo-oars"], "no pod is replaced"
    assert content(world.stored[SECRET]) == before
    later(world)
    assert one_pass(world) == []
    assert head_annotation(world) is None


def test_lost_secret_is_noticed_at_once_if_a_pod_cannot_mount_it(
    world: World, mounted: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_secret(world)
    later(world, 2 - CHECK_SECONDS)
    assert one_pass(world) == [], "it is not looked for in every pass"
    for name in ("a", "b"):
        world.keep_from_starting(name)

    async def fails(*_: object) -> tuple[Cause, ...]:
        return (Cause(VOLUME_FAILS, "a cannot mount a volume"),)

    monkeypatch.setattr(Evidence, "causes", fails)
    assert one_pass(world) == [VOLUME_FAILS]
    assert one_pass(world) == ["SecretLost", VOLUME_FAILS]
    assert SECRET in world.stored


def test_busy_head_is_asked_again_before_it_is_replaced(world: World, mounted: dict[str, str]) -> None:
    before = lose_secret(world)
    files = dict(mounted)
    mounted.clear()
    for _ in range(3):
        with pytest.raises(PlaceError, match="cannot be asked for it yet") as refused:
            one_pass(world)
        assert refused.value.cause.reason == "SecretLost" and refused.value.cause.hint
        later(world, 5)
    assert world.writes == []
    mounted |= files
    one_pass(world)
    assert content(world.stored[SECRET]) == before and head_annotation(world) is None


def is_replaced_with(world: World, before: Mapping[str, bytes]) -> bool:
    """The Secret has new content, and the head's Deployment rolls it out."""
    found = world.stored[SECRET]
    assert set(content(found)) == set(FILES)
    assert not set(content(found).values()) & set(before.values())
    assert "apply Deployment/demo-head" in world.writes
    return bool(found["metadata"]["annotations"][names.SECRET_EPOCH] == head_annotation(world))


def test_head_that_cannot_send_its_files_is_replaced_with_new_secrets(world: World, mounted: dict[str, str]) -> None:
    before = lose_secret(world)
    mounted.clear()
    with pytest.raises(PlaceError):
        one_pass(world)
    later(world, RESTORE_SECONDS + 1)
    assert one_pass(world) == ["SecretLost"]
    assert is_replaced_with(world, before)
    world.writes.clear()
    later(world)
    assert one_pass(world) == [] and world.writes == []


def test_secret_lost_while_no_loop_ran_is_replaced(world: World, mounted: dict[str, str]) -> None:
    """Nobody knows the helper's token any more."""
    before = lose_secret(world)
    world.reopen()
    assert one_pass(world) == ["SecretLost"]
    assert is_replaced_with(world, before)


def test_secret_lost_together_with_the_head_is_replaced(world: World, mounted: dict[str, str]) -> None:
    before = lose_secret(world)
    world.keep_from_starting("h")
    one_pass(world)
    assert is_replaced_with(world, before)


def test_replacement_continues_in_another_process(world: World, mounted: dict[str, str]) -> None:
    """The first one died after it had written the Secret. The head was rendered by another version of Oars."""
    lose_secret(world)
    world.reopen()
    head = world.running["demo-head"]
    head["metadata"]["annotations"][names.APPLIED] = str(Fingerprint("other", Fingerprint.of(head).spec, 0, "older"))
    world.refusal = ApiError(500, {"message": "no"})
    with pytest.raises(PlaceError):
        one_pass(world)
    world.refusal = None
    world.stored[SECRET] = {
        "metadata": {"name": "demo-oars", "uid": "s", "resourceVersion": "1", "ownerReferences": [world.owner],
                     "annotations": {names.SECRET_EPOCH: "1"}},
        "data": {name: base64.b64encode(text).decode() for name, text in make_secrets("demo", ("tls",)).items()},
    }  # fmt: skip
    world.reopen()
    assert head_is_replaced(world)
    world.ensure_head()
    assert head_annotation(world) == "1"
    assert Fingerprint.of(world.running["demo-head"]).epoch == 1


def test_token_of_the_helper_alone_replaces_no_head(mounted: dict[str, str]) -> None:
    """The helper reads a new token by itself."""
    world = World(cluster("dask", workers=2, tied=True, dask={"protocol": "tcp"}))
    lose_secret(world)
    mounted.clear()
    world.reopen()
    one_pass(world)
    assert set(content(world.stored[SECRET])) == {"control"}
    assert head_annotation(world) is None and "apply Deployment/demo-head" not in world.writes


def test_secret_is_not_replaced_after_an_error_of_the_api_server(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one_pass(world)
    later(world)

    async def fail(*_: object) -> Object:
        raise ApiError(500, {"message": "no"})

    monkeypatch.setattr(World, "get", fail)
    world.writes.clear()
    assert one_pass(world) == [] and world.writes == []


# other objects that are not watched


@pytest.mark.parametrize("kind", ["ConfigMap", "Service", "NetworkPolicy", "ServiceAccount"])
def test_deleted_object_that_is_not_watched_comes_back(world: World, kind: str) -> None:
    world.kinds[kind] = None
    name = "demo-head" if kind == "Service" else "demo-oars"
    assert one_pass(world) == []
    del world.stored[kind, name]
    world.writes.clear()
    one_pass(world)
    assert world.writes == [], "it is not looked for in every pass"
    later(world)
    one_pass(world)
    assert world.writes == [f"apply {kind}/{name}"]
    later(world)
    world.writes.clear()
    one_pass(world)
    assert world.writes == []


# certificates


def near_expiry(world: World, days: float) -> None:
    expires = expires_at(content(world.stored[SECRET]))
    assert expires is not None
    world.now = expires - days * DAY


def test_certificates_are_announced_then_replaced_with_the_head(world: World) -> None:
    before = content(world.stored[SECRET])
    near_expiry(world, 61)
    assert one_pass(world) == []
    near_expiry(world, 59)
    assert one_pass(world) == ["CertificateExpires"]
    assert content(world.stored[SECRET]) == before
    world.writes.clear()
    near_expiry(world, 29)
    world.observe()
    world.ensure_head()
    found = content(world.stored[SECRET])
    assert {name for name in FILES if found[name] != before[name]} == {"ca.pem", "cert.pem", "key.pem"}
    assert world.stored[SECRET]["metadata"]["annotations"] == {names.SECRET_EPOCH: "1"}
    assert head_annotation(world) == "1"
    assert (world.writes[0], world.writes[-1]) == ("patch Secret/demo-oars", "apply Deployment/demo-head")


def test_deleting_the_secret_replaces_certificates_that_expire_soon(world: World, mounted: dict[str, str]) -> None:
    """As the announcement proposes."""
    near_expiry(world, 45)
    remarks = world.observe().remarks
    assert "`kubectl delete secret demo-oars -n lab`" in remarks[0].hint
    before = content(world.stored.pop(SECRET))
    later(world)
    one_pass(world)
    assert is_replaced_with(world, before)
