"""Credentials: files that change, and exec credential plugins, which are real programs here."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from oars.kube import auth
from oars.kube import informer as informers
from oars.kube.auth import Credentials, impersonation_headers, tls_context
from oars.kube.client import Client
from oars.kube.errors import ConfigError
from oars.kube.kinds import POD
from oars.kube.target import ExecPlugin, Impersonation, Pem, Target

SERVER = "https://k:6443"
VERSIONS = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"]


def header(credentials: Credentials) -> str:
    return dict(asyncio.run(credentials.headers())).get("Authorization", "")


def plugin(folder: Path, status: dict[str, Any], version: str = VERSIONS[0], **options: Any) -> ExecPlugin:
    """Write a plugin that counts its runs, records its input and prints a credential; $N becomes the run's number."""
    text = json.dumps({"kind": "ExecCredential", "apiVersion": version, "status": status})
    program = folder / "print-credential"
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys, pathlib\n"
        f"folder = pathlib.Path({str(folder)!r})\n"
        "with (folder / 'runs').open('a') as runs: runs.write('x')\n"
        "info, more = os.environ['KUBERNETES_EXEC_INFO'], os.environ.get('K', '')\n"
        "(folder / 'input').write_text(info + '\\n' + more + str(sys.argv[1:]))\n"
        f"print({text!r}.replace('$N', str(len((folder / 'runs').read_text()))))\n"
    )
    program.chmod(0o755)
    return ExecPlugin(str(program), api_version=version, interactive_mode="Never", **options)


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text())


def credentials(made: ExecPlugin) -> Credentials:
    return Credentials(Target(SERVER, exec_plugin=made), os.environ)


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_static_token_and_basic_auth() -> None:
    assert header(Credentials(Target(SERVER, token="t"), {})) == "Bearer t"
    assert header(Credentials(Target(SERVER, username="u", password="p"), {})) == "Basic dTpw"
    assert header(Credentials(Target(SERVER), {})) == ""


def test_token_file_is_reloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    made = Credentials(Target(SERVER, token_file=str(path)), {})
    assert header(made) == "Bearer one"
    path.write_text("two\n")
    assert header(made) == "Bearer one"
    assert asyncio.run(made.renew(made.version))
    assert header(made) == "Bearer two"
    assert not asyncio.run(made.renew(made.version)), "the token in the file did not change"
    monkeypatch.setattr(auth, "RELOAD_SECONDS", 0)
    path.write_text("three")
    assert header(made) == "Bearer three"
    path.unlink()
    assert header(made) == "Bearer three"
    with pytest.raises(ConfigError, match="Cannot read token file"):
        header(Credentials(Target(SERVER, token_file=str(path)), {}))


@pytest.mark.parametrize("version", VERSIONS)
def test_concurrent_requests_run_the_plugin_once(tmp_path: Path, version: str) -> None:
    options = {"args": ("a",), "env": (("K", "V"),), "cluster_info": {"server": SERVER}}
    made = credentials(plugin(tmp_path, {"token": "t$N"}, version, **options))

    async def many() -> list[Any]:
        return await asyncio.gather(*[made.headers() for _ in range(10)])

    assert {dict(lines)["Authorization"] for lines in asyncio.run(many())} == {"Bearer t1"}
    assert runs(tmp_path) == 1
    info, rest = (tmp_path / "input").read_text().split("\n")
    assert json.loads(info)["spec"] == {"interactive": False, "cluster": {"server": SERVER}}
    assert (json.loads(info)["apiVersion"], rest) == (version, "V['a']")


def test_concurrent_401_responses_run_the_plugin_once(tmp_path: Path) -> None:
    made = credentials(plugin(tmp_path, {"token": "t$N"}))

    async def body() -> None:
        await made.headers()
        rejected = made.version
        assert all(await asyncio.gather(*[made.renew(rejected) for _ in range(10)]))
        assert await made.renew(rejected), "a late response to the old credentials"
        assert dict(await made.headers())["Authorization"] == "Bearer t2"
        assert runs(tmp_path) == 2
        assert await made.renew(made.version) and runs(tmp_path) == 3, "the new credentials were rejected too"

    asyncio.run(body())


def test_concurrent_401_responses_reload_the_token_file_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    made = Credentials(Target(SERVER, token_file=str(path)), {})
    assert header(made) == "Bearer one"
    path.write_text("two")
    rejected = made.version
    assert [asyncio.run(made.renew(rejected)) for _ in range(3)] == [True] * 3
    assert not asyncio.run(made.renew(made.version)), "the new token was rejected too"


def test_request_timeout_does_not_kill_the_plugin(tmp_path: Path) -> None:
    entry = plugin(tmp_path, {"token": "t$N"})
    program = Path(entry.command)
    program.write_text(program.read_text().replace("import os", "import time; time.sleep(2)\nimport os"))

    async def body() -> None:
        made = credentials(entry)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await made.headers()
        assert dict(await made.headers())["Authorization"] == "Bearer t1"
        again = credentials(entry)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await again.headers()
        await again.close()

    asyncio.run(body())
    assert runs(tmp_path) == 1, "close() kills a running plugin"


def test_plugin_runs_again_when_its_token_expires(tmp_path: Path) -> None:
    status = {"token": "t$N", "expirationTimestamp": in_seconds(3600)}
    made = credentials(plugin(tmp_path, status))
    assert header(made) == header(made) == "Bearer t1"
    plugin(tmp_path, {**status, "expirationTimestamp": in_seconds(5)})
    assert asyncio.run(made.renew(made.version))
    assert header(made) == "Bearer t3", "a token that expires within seconds is not used"


def test_new_plugin_certificate_replaces_the_tls_context(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    made = credentials(plugin(tmp_path, {"clientCertificateData": cert, "clientKeyData": key}))
    first = asyncio.run(made.tls())
    assert first is not None and first is asyncio.run(made.tls())
    assert header(made) == ""
    other, key = certificate(tmp_path)
    plugin(tmp_path, {"clientCertificateData": other, "clientKeyData": key})
    asyncio.run(made.renew(made.version))
    assert asyncio.run(made.tls()) is not first, "connections with the old certificate must not be reused"


def test_renewed_certificate_files_are_reloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate(tmp_path)
    cert, key = tmp_path / "c.pem", tmp_path / "k.pem"
    made = Credentials(Target(SERVER, cert=Pem(path=str(cert)), key=Pem(path=str(key))), os.environ)
    first = asyncio.run(made.tls())
    certificate(tmp_path)
    assert asyncio.run(made.tls()) is first, "the files are not checked for every request"
    monkeypatch.setattr("oars.kube.auth.RELOAD_SECONDS", -1.0)
    second = asyncio.run(made.tls())
    assert second is not first and asyncio.run(made.tls()) is second
    whole = key.read_text()
    key.write_text(whole[:20])
    assert asyncio.run(made.tls()) is second and not asyncio.run(made.renew(made.version)), (
        "a half-written key is not used"
    )
    key.write_text(whole)
    assert asyncio.run(made.renew(made.version)), "status 401 reloads the files at once"
    cert.unlink()
    assert asyncio.run(made.tls()) is not None


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "neither token nor certificate": ({"token": ""}, "neither a token nor a certificate"),
    "certificate without key": ({"clientCertificateData": "x"}, "neither a token nor a certificate"),
    "invalid timestamp": ({"token": "t", "expirationTimestamp": "soon"}, "invalid ExecCredential"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_exec_credential_is_an_error(tmp_path: Path, case: str) -> None:
    status, message = INVALID[case]
    with pytest.raises(ConfigError, match=message):
        header(credentials(plugin(tmp_path, status)))


def test_plugin_failures_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not installed") as missing:
        header(credentials(ExecPlugin("no-such-program", interactive_mode="Never", install_hint="brew install it")))
    assert missing.value.hint == "brew install it"
    made = plugin(tmp_path, {"token": "t"})
    with pytest.raises(ConfigError, match=r"returned client.authentication.k8s.io/v1, not"):
        header(credentials(replace(made, api_version=VERSIONS[1])))
    Path(made.command).write_text("#!/bin/sh\necho 'log in first' >&2\nexit 3\n")
    with pytest.raises(ConfigError, match="exit code 3") as failed:
        header(credentials(made))
    assert failed.value.details == ("log in first",)


BROKEN_PROGRAMS = {
    "no format": b"\x00not a program",
    "missing interpreter": b"#!/no/such/interpreter\n",
    "empty program": b"",
    "killed": b"#!/bin/sh\nkill -9 $$\n",
    "no JSON": b"#!/bin/sh\necho hello\n",
    "JSON of another type": b"#!/bin/sh\necho '[1]'\n",
}


@pytest.mark.parametrize("case", BROKEN_PROGRAMS)
def test_plugin_that_cannot_start_is_a_config_error(tmp_path: Path, case: str) -> None:
    made = plugin(tmp_path, {"token": "t"})
    Path(made.command).write_bytes(BROKEN_PROGRAMS[case])
    with pytest.raises(ConfigError, match="Exec plugin") as failed:
        header(credentials(made))
    assert made.command in failed.value.message and failed.value.hint


def test_plugin_with_invalid_arguments_is_a_config_error(tmp_path: Path) -> None:
    made = plugin(tmp_path, {"token": "t"}, args=("a\0b",))
    with pytest.raises(ConfigError, match="cannot be started"):
        header(credentials(made))


def test_watch_continues_when_a_broken_plugin_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure is kept as the informer's error; it does not end the informer."""
    monkeypatch.setattr(informers, "FIRST_DELAY", 0.01)
    made = plugin(tmp_path, {"token": "t"})
    program = Path(made.command)
    working = program.read_bytes()
    program.write_bytes(b"#!/no/such/interpreter\n")

    async def answer(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer t"
        item = {"metadata": {"namespace": "n", "name": "a", "resourceVersion": "1"}}
        return web.json_response({"items": [item], "metadata": {"resourceVersion": "1"}})

    async def body() -> None:
        app = web.Application()
        app.router.add_get("/{tail:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        target = Target(f"http://127.0.0.1:{runner.addresses[0][1]}", exec_plugin=made)
        async with Client(target) as client, asyncio.timeout(60):
            informer = informers.Informer(client, POD)
            running = asyncio.create_task(informer.run())
            while not isinstance(informer.error, ConfigError):  # noqa: ASYNC110 (there is no event to wait for)
                await asyncio.sleep(0.01)
            assert not running.done() and "cannot be started" in informer.error.message
            await asyncio.to_thread(program.write_bytes, working)
            await informer.wait_synced()
            assert list(informer.objects) == [("n", "a")]
            running.cancel()
            await asyncio.wait([running])
        await runner.cleanup()

    asyncio.run(body())


def test_token_that_is_no_header_value_is_a_config_error(tmp_path: Path) -> None:
    for token in ("a\nb", "\u00e9"):
        with pytest.raises(ConfigError, match="HTTP header"):
            header(Credentials(Target(SERVER, token=token), {}))
    (tmp_path / "token").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="it is not text"):
        header(Credentials(Target(SERVER, token_file=str(tmp_path / "token")), {}))


def test_interactive_plugin_needs_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "stdin").open("w+") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        made = replace(plugin(tmp_path, {"token": "t"}), interactive_mode="Always")
        with pytest.raises(ConfigError, match="not a terminal"):
            header(credentials(made))
        assert header(credentials(replace(made, interactive_mode="IfAvailable"))) == "Bearer t"


def test_hanging_plugin_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oars.kube.exec_plugin.TIMEOUT", 0.3)
    made = plugin(tmp_path, {"token": "t"})
    Path(made.command).write_text("#!/bin/sh\nexec sleep 100\n")
    with pytest.raises(ConfigError, match=r"did not finish within 0.3 s"):
        header(credentials(made))


def test_impersonation_headers() -> None:
    who = Impersonation("ann", "7", ("g", "h"), (("acme.com/x", ("1", "2")),))
    assert impersonation_headers(who) == [
        ("Impersonate-User", "ann"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "g"),
        ("Impersonate-Group", "h"),
        ("Impersonate-Extra-acme.com%2Fx", "1"),
        ("Impersonate-Extra-acme.com%2Fx", "2"),
    ]


def test_invalid_certificates_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="authority"):
        tls_context(Target(SERVER, ca=Pem(data="no PEM")), Pem(), Pem())
    with pytest.raises(ConfigError, match="client certificate"):
        tls_context(Target(SERVER), Pem(path=str(tmp_path / "none")), Pem())


def certificate(folder: Path) -> tuple[str, str]:
    """Write a new self-signed certificate and its key; return their PEM text."""
    cert, key = folder / "c.pem", folder / "k.pem"
    command = (
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=u -keyout {key} -out {cert}"
    )
    subprocess.run(command.split(), check=True, capture_output=True, timeout=30)
    return cert.read_text(), key.read_text()
