"""The chart's generated files, made from what `oars operator install` applies: `python deploy/helm/oars/generate.py`.

The templates are never edited by hand, so that the two ways of installing cannot differ. Values come in where a marker
stands; a test renders the chart with Helm and compares. readme.py makes README.md from the comments of values.yaml,
dashboard.py the dashboard for Grafana.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dashboard
import readme
import yaml

import oars
from oars import engines
from oars.cli.output import BOOLEANS
from oars.operator import NAME, admission, manifests, rbac
from oars.operator import crd as definitions
from oars.operator.manifests import InstallOptions

CHART = Path(__file__).parent
NOTE = "{{- /* Made by generate.py from src/oars/operator: change that, then run it. */ -}}\n"
RELEASE = "{{ .Release.Namespace }}"
OPTIONS = InstallOptions(namespace=RELEASE)
WATCHED = "{{ . }}"
FULL_NAME = '{{ include "oars.fullname" $ }}'
# Labels that the helper oars.labels has, and the line that stands for them.
COMMON = ("app.kubernetes.io/name", "app.kubernetes.io/part-of", "app.kubernetes.io/version")
LABELS = "LABELS"

# A line of the Deployment as it is made, and what the chart has there. Every one must be found exactly once.
IMAGE = "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
OPTIONAL = """      {{- with .Values.VALUE }}
      VALUE:
        {{- toYaml . | nindent 8 }}
      {{- end }}
"""
VALUES = {
    "  replicas: 2\n": "  replicas: {{ .Values.replicas }}\n",
    f"        image: {manifests.IMAGE}\n": f'        image: "{IMAGE}"\n',
    "        imagePullPolicy: IfNotPresent\n": "        imagePullPolicy: {{ .Values.image.pullPolicy }}\n",
    "    metadata:\n      labels:\n": """    metadata:
      {{- with .Values.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      labels:
        {{- with .Values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        app.kubernetes.io/instance: {{ .Release.Name }}
""",
    "      securityContext: SECURITY\n": """      securityContext:
        {{- toYaml .Values.podSecurityContext | nindent 8 }}
""",
    "        - name: HOME\n          value: /tmp\n": """        - name: HOME
          value: /tmp
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
""",
    "        - --log-format=json\n": """        - --log-format={{ .Values.logFormat }}
        {{- range .Values.watchNamespaces }}
        - --namespace={{ . }}
        {{- end }}
        {{- if .Values.trustAuthors }}
        - --trust-authors
        {{- end }}
        {{- if .Values.adopt.marsjob }}
        - --adopt=marsjob
        {{- end }}
        {{- with .Values.extraArgs }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
""",
    "        resources: RESOURCES\n": """        resources:
          {{- toYaml .Values.resources | nindent 10 }}
""",
    f"      serviceAccountName: '{FULL_NAME}'\n": "".join([
        f"      serviceAccountName: '{FULL_NAME}'\n",
        *(OPTIONAL.replace("VALUE", each) for each in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity")),
        OPTIONAL.replace("VALUE", "priorityClassName").replace("\n        {{- toYaml . | nindent 8 }}", " {{ . }}"),
    ]),
}  # fmt: skip


def files() -> dict[Path, str]:
    """Every generated file and its text."""
    return {
        CHART / "templates/crd.yaml": crd(),
        CHART / "templates/authors.yaml": authors(),
        CHART / "templates/rights.yaml": rights(),
        CHART / "templates/deployment.yaml": deployment(),
        CHART / "templates/marsjob.yaml": mars_jobs(),
        CHART / "templates/rest.yaml": rest(),
        CHART / "dashboards/oars.json": dashboard.text(),
        CHART / "README.md": readme.text(CHART),
    }


def crd() -> str:
    """Kept when the chart goes: with it would go all clusters."""
    made = manifests.definition(RELEASE, engines.BUILT_IN)
    jobs = definitions.compute_job()
    for obj in (made, jobs):
        obj["metadata"].setdefault("annotations", {})["helm.sh/resource-policy"] = "keep"
    return f"{NOTE}{{{{- if .Values.crds.install }}}}\n{documents([made, jobs])}{{{{- end }}}}\n"


def authors() -> str:
    """Kept like the CRD: as long as there are clusters, their authors are checked."""
    return f"{NOTE}{checked(admission.manifests(engines.BUILT_IN))}"


def mars_jobs() -> str:
    """The definitions of MarsJobs and the check of their authors, which are kept, and the rights."""
    made = definitions.mars_jobs()
    for obj in made:
        obj["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
    account = rbac.Subject("ServiceAccount", "oars-operator", "{{ $.Release.Namespace }}")
    everywhere = rbac.role_and_binding("oars-operator-marsjobs", rbac.MARS_JOBS, account)
    watched = rbac.role_and_binding("oars-operator-marsjobs", rbac.MARS_JOBS, account, WATCHED)
    return "".join([
        NOTE, "{{- if .Values.adopt.marsjob }}\n",
        "{{- if .Values.crds.install }}\n---\n", documents(made), "{{- end }}\n",
        checked(admission.mars_job_manifests()),
        "{{- range .Values.watchNamespaces }}\n---\n", documents(watched), "{{- else }}\n---\n", documents(everywhere),
        "{{- end }}\n---\n", documents(rbac.mars_job_roles()), "{{- end }}\n",
    ])  # fmt: skip


def checked(made: list[dict[str, Any]]) -> str:
    """A policy and its binding, where the server has such policies."""
    for obj in made:
        obj["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
    action = f"  - {admission.DENY}\n"
    text = documents(made)
    if text.count(action) != sum(obj["kind"].endswith("Binding") for obj in made):
        raise SystemExit(f"Not each binding has a line {action!r}: bring checked() in generate.py up to date.")
    chosen = f"  - {{{{ ternary {json.dumps(admission.AUDIT)} {json.dumps(admission.DENY)} .Values.trustAuthors }}}}\n"
    served = '{{- if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" }}\n'
    return f"{served}---\n{text.replace(action, chosen)}{{{{- end }}}}\n"


def rights() -> str:
    """Everywhere, or in each watched namespace."""
    account = rbac.Subject("ServiceAccount", "oars-operator", "{{ $.Release.Namespace }}")
    everywhere = rbac.role_and_binding("oars-operator", rbac.OPERATOR, account)
    watched = rbac.role_and_binding("oars-operator", rbac.OPERATOR, account, WATCHED)
    nodes = rbac.role_and_binding("oars-operator-nodes", (rbac.NODES,), account)
    queues = rbac.role_and_binding("oars-operator-queues", rbac.QUEUES, account)
    return "".join([
        NOTE,
        "{{- range .Values.watchNamespaces }}\n---\n", documents(watched), "{{- else }}\n---\n", documents(everywhere),
        "{{- end }}\n{{- if .Values.nodes }}\n---\n", documents(nodes), "{{- end }}\n",
        "{{- if .Values.queues }}\n---\n", documents(queues), "{{- end }}\n",
    ])  # fmt: skip


def deployment() -> str:
    """The one object with many values in it."""
    made = manifests.deployment(replace(OPTIONS, resources="RESOURCES"))  # type: ignore[arg-type]
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    if made["spec"]["template"]["spec"]["securityContext"] != defaults["podSecurityContext"]:
        raise SystemExit("values.yaml has another podSecurityContext than install.yaml.")
    made["spec"]["template"]["spec"]["securityContext"] = "SECURITY"
    text = documents([made])
    for found, wanted in VALUES.items():
        if text.count(found) != 1:
            raise SystemExit(f"The Deployment has not one line {found!r}: bring VALUES in generate.py up to date.")
        text = text.replace(found, wanted)
    return NOTE + text


def rest() -> str:
    """What has no values but names, and the NetworkPolicy."""
    elsewhere = ("Namespace", "CustomResourceDefinition", "Deployment", *(kind.kind for kind in admission.KINDS))
    objects = [obj for obj in manifests.install(OPTIONS) if obj["kind"] not in elsewhere and not _right(obj)]
    (account,) = (obj for obj in objects if obj["kind"] == "ServiceAccount")
    (policy,) = (obj for obj in objects if obj["kind"] == "NetworkPolicy")
    others = [obj for obj in objects if obj not in (account, policy)]
    annotated = """  {{- with .Values.serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automount"""
    return "".join([
        NOTE, documents([account]).replace("automount", annotated), "---\n", documents(others),
        "{{- if .Values.networkPolicy.enabled }}\n---\n", documents([policy]), "{{- end }}\n",
    ])  # fmt: skip


def _right(obj: dict[str, Any]) -> bool:
    kind, name = str(obj["kind"]), str(obj["metadata"]["name"])
    return kind.startswith("ClusterRole") and name.startswith("oars-operator")


class Quoting(yaml.SafeDumper):
    """Quotes what Helm takes for true or false."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="'" if value in BOOLEANS else None)


Quoting.add_representer(str, _text)


def documents(objects: Sequence[dict[str, Any]]) -> str:
    plain = json.loads(json.dumps(objects))  # no anchors
    text = "---\n".join(yaml.dump(_released(obj), Dumper=Quoting, sort_keys=False, width=1000) for obj in plain)
    return text.replace(f"    {LABELS}: {LABELS}\n", '    {{- include "oars.labels" $ | nindent 4 }}\n')


def _released(obj: dict[str, Any]) -> dict[str, Any]:
    """The object with the name and the labels of the release. Others refer to it by that name."""
    metadata = obj["metadata"]
    labels = {key: value for key, value in metadata.get("labels", {}).items() if key not in COMMON}
    metadata["labels"] = {LABELS: LABELS, **labels}
    pod = obj.get("spec", {}).get("template", {}).get("spec", {}) if obj["kind"] == "Deployment" else {}
    for part, key in ((metadata, "name"), (obj.get("roleRef", {}), "name"), (pod, "serviceAccountName")):
        part |= {key: part[key].replace(NAME, FULL_NAME)} if key in part else {}
    for subject in obj.get("subjects", ()):
        subject["name"] = subject["name"].replace(NAME, FULL_NAME)
    return obj


def main() -> int:
    if oars.__version__ not in (CHART / "Chart.yaml").read_text():
        raise SystemExit("Chart.yaml has another version than Oars.")
    stale = {path: text for path, text in files().items() if not path.exists() or path.read_text() != text}
    if "--check" in sys.argv[1:]:
        sys.stderr.writelines(f"{path} is not current: run deploy/helm/oars/generate.py.\n" for path in stale)
        return 1 if stale else 0
    for path, text in stale.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
