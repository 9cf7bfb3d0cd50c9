{{/* The name of the operator's objects. One installation serves a whole Kubernetes, so the release is not part of it. */}}
{{- define "oars.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if .Values.nameOverride -}}
{{- printf "%s-%s" .Release.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
oars-operator
{{- end -}}
{{- end -}}

{{/* Labels of all objects. Those that select the operator's pods do not depend on the release: the NetworkPolicies of
clusters have them, too. */}}
{{- define "oars.labels" -}}
app.kubernetes.io/name: oars
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: oars
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}
