"""The MarsJob of KubeDL's document with real pods: from `kubectl create` to a result on its web service."""

from __future__ import annotations

import json

import pytest
from lab.kube import Kube

from oars.places.kube import names
from tests.e2e.contract import until
from tests.marsjob import small_document

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("operator")]

NAME = "mars-test-demo"
# The work of the document's snippet, with a session of today's Mars.
SNIPPET = """
import socket, sys, urllib.request, urllib.error
import mars.dataframe as md
import mars.tensor as mt
from mars.deploy.oscar.session import new_session
for address in sys.argv[1:]:
    new_session(address, default=True)
    a = mt.ones((2000, 2000), chunk_size=1000)
    b = mt.inner(a, a).execute(show_progress=False)
    df = md.DataFrame(a).sum().execute(show_progress=False)
    print(int(b.fetch()[0, 0]), int(df.fetch().iloc[0]))
    try:
        urllib.request.urlopen(address)
    except urllib.error.HTTPError as error:
        print(error.code)
for number in range(2):
    print(socket.gethostbyname(f"mars-test-demo-worker-{number}"))
"""


class TestMarsJob:
    def test_snippet_computes_on_the_web_service_of_the_document(self, home: Kube) -> None:
        home.kubectl("create", "-f", "-", text=json.dumps(small_document(home.image("mars-pymars"))))

        def state() -> str:
            shown = home.kubectl("get", "marsjob", NAME, "-o", "json")
            conditions = json.loads(shown).get("status", {}).get("conditions") or [{"type": ""}]
            return str(conditions[-1]["type"])

        until(lambda: state() == "Running", 240)
        for selector in ("replica-type=scheduler", "replica-type=worker"):
            home.kubectl("wait", "pod", "-l", f"job-name={NAME},{selector}", "--for=condition=Ready", "--timeout=55s")
        (head,) = home.pods(f"{names.CLUSTER}={NAME},{names.GROUP}=head")
        web = f"http://{NAME}-webservice-0.{home.namespace}"
        words = ("exec", head["metadata"]["name"], "--", "python", "-c", SNIPPET, web, f"{web}:11111")
        *computed, first, second = home.kubectl(*words, seconds=240).split()
        assert computed == ["2000", "2000", "401"] * 2, "a program without the token is refused"
        addresses = {pod["status"]["podIP"] for pod in home.pods(f"{names.CLUSTER}={NAME},{names.GROUP}=default")}
        assert {first, second} == addresses
        home.kubectl("delete", "marsjob", NAME)
