{{- define "mig-manager.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "mig-manager.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "mig-manager.labels" -}}
{{ include "mig-manager.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "mig-manager.serviceAccount" -}}
{{- default (.Values.serviceAccount.create | ternary (include "mig-manager.fullname" .) "default") .Values.serviceAccount.name }}
{{- end }}

{{- define "mig-manager.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- /* A file that the values give as a mapping or as a text. */}}
{{- define "mig-manager.file" -}}
{{- kindIs "string" . | ternary . (toYaml .) | trim }}
{{- end }}

{{- /* The operands file; empty: the daemon's own list serves. */}}
{{- define "mig-manager.operands" -}}
{{- if .Values.operands.file }}
{{- include "mig-manager.file" .Values.operands.file }}
{{- else if eq .Values.operands.preset "standalone" }}
{{- .Files.Get "files/operands-standalone.yaml" | trim }}
{{- end }}
{{- end }}

{{- define "mig-manager.configMapName" -}}
{{- .Values.settings.configMapName | default "mig-manager-layouts" }}
{{- end }}

{{- define "mig-manager.configMapNamespace" -}}
{{- .Values.settings.configMapNamespace | default .Release.Namespace }}
{{- end }}

{{- /* What the other values imply for the daemon, by the names that its settings have in the values. */}}
{{- define "mig-manager.implied" -}}
configMapName: {{ include "mig-manager.configMapName" . }}
hostRootMount: /host
driverRoot: {{ printf "/host/%s" (trimAll "/" .Values.driver.root) | trimSuffix "/" }}
hostDriverRoot: {{ .Values.driver.root }}
podResourcesSocket: /var/lib/kubelet/pod-resources/kubelet.sock
logFormat: json
{{- if include "mig-manager.operands" . }}
operandsFile: /etc/mig-manager/operands.yaml
{{- end }}
{{- if .Values.hostClients }}
gpuClientsFile: /etc/mig-manager/host-clients.yaml
withShutdownHostGpuClients: true
{{- end }}
{{- end }}

{{- /* The settings as environment variables; those of the values win over what is implied. */}}
{{- define "mig-manager.environment" -}}
{{- $settings := merge (deepCopy .Values.settings) (include "mig-manager.implied" . | fromYaml) }}
{{- range $key, $name := .Files.Get "files/settings.yaml" | fromYaml }}
{{- if hasKey $settings $key }}
{{- $value := index $settings $key }}
- name: {{ $name }}
  value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The port of the daemon's pages; empty where they cannot be reached at the pod's address, or are off. */}}
{{- define "mig-manager.port" -}}
{{- $listen := .Values.settings.listen | default "9409" }}
{{- if regexMatch "^((0\\.0\\.0\\.0|\\[::\\]):)?[1-9][0-9]*$" $listen }}
{{- regexFind "[0-9]+$" $listen }}
{{- end }}
{{- end }}

{{- /* How Prometheus scrapes a daemon; the metrics themselves do not name its node. */}}
{{- define "mig-manager.endpoints" -}}
- port: http
  path: /metrics
  interval: {{ .interval }}
  relabelings:
    - sourceLabels: [__meta_kubernetes_pod_node_name]
      targetLabel: node
{{- end }}

{{- /* Longer than the daemon takes to end after SIGTERM, whatever it is doing then. */}}
{{- define "mig-manager.gracePeriod" -}}
{{- .Values.settings.stopTimeout | default 18 | ceil | add 12 }}
{{- end }}

{{- /* The data of the ConfigMap that is mounted; empty: there is none. */}}
{{- define "mig-manager.files" -}}
{{- with include "mig-manager.operands" . }}
operands.yaml: |
  {{- . | nindent 2 }}
{{- end }}
{{- with .Values.hostClients }}
host-clients.yaml: |
  {{- include "mig-manager.file" . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "mig-manager.subjects" -}}
- kind: ServiceAccount
  name: {{ include "mig-manager.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{- /* A RoleBinding, and the Role up to its rules: of (list . name namespace). */}}
{{- define "mig-manager.role" -}}
{{- $name := index . 1 }}
{{- $namespace := index . 2 }}
{{- with index . 0 }}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ $namespace }}
  labels:
    {{- include "mig-manager.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
  {{- include "mig-manager.subjects" . | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ $namespace }}
  labels:
    {{- include "mig-manager.labels" . | nindent 4 }}
{{- end }}
{{- end }}

{{- /* Metadata of what `helm uninstall` makes before it deletes anything: of (list . name namespaced), (… weight). */}}
{{- define "mig-manager.cleanup" -}}
{{- $weight := gt (len .) 3 | ternary "1" "0" }}
{{- $name := index . 1 }}
{{- $namespaced := index . 2 }}
{{- with index . 0 -}}
name: {{ $name }}
{{- if $namespaced }}
namespace: {{ .Release.Namespace }}
{{- end }}
labels:
  {{- include "mig-manager.labels" . | nindent 2 }}
annotations:
  helm.sh/hook: pre-delete
  helm.sh/hook-weight: {{ $weight | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
{{- end }}
