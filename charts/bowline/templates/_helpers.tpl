{{/* The name of the objects of which a release has one. The aggregation labels contain it too. */}}
{{- define "bowline.name" -}}
{{- if contains "bowline" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-bowline" (.Release.Name | trunc 32 | trimSuffix "-") }}{{ end -}}
{{- end -}}

{{- define "bowline.selector" -}}
app.kubernetes.io/name: bowline
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "bowline.labels" -}}
{{ include "bowline.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "bowline.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* The names of all nodes that the account may impersonate, as a JSON list. */}}
{{- define "bowline.nodes" -}}
{{- $nodes := .Values.nodes -}}
{{- if .Values.localSocket.enabled }}{{ $nodes = list .Values.localSocket.nodeName }}{{ end -}}
{{- range .Values.hosts }}{{ $nodes = append $nodes (.nodeName | default .name) }}{{ end -}}
{{- $nodes | uniq | sortAlpha | toJson -}}
{{- end -}}

{{/* The name of a host's Secret. */}}
{{- define "bowline.secret" -}}
{{- if .credentialsSecretRef }}{{ .credentialsSecretRef.name }}{{ else }}{{ .name }}{{ end -}}
{{- end -}}

{{/* The names of all Secrets that the account may read, as a JSON list. */}}
{{- define "bowline.secrets" -}}
{{- $secrets := .Values.secrets -}}
{{- range .Values.hosts }}{{ $secrets = append $secrets (include "bowline.secret" .) }}{{ end -}}
{{- $secrets | uniq | sortAlpha | toJson -}}
{{- end -}}

{{/* Common to all pods: they have no privileges on their machine, and do not run on a node
     that Bowline manages. */}}
{{- define "bowline.pod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
      - matchExpressions: [{key: bowline.io/node, operator: DoesNotExist}]
{{- end -}}

{{- define "bowline.container" -}}
image: {{ include "bowline.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "bowline.configuration" -}}
{{- $c := deepCopy .Values.config -}}
{{- $_ := set $c "apiVersion" "bowline.io/v1alpha1" -}}
{{- $_ := set $c "kind" "BowlineConfiguration" -}}
{{/* The chart does not look this up, because "helm template" and GitOps tools have no cluster. */}}
{{- with .Values.clusterDNS }}{{ $_ := set $c "clusterDNS" . }}{{ end -}}
{{- $_ := set $c "clusterDomain" .Values.clusterDomain -}}
{{- $_ := set $c "serverTLSBootstrap" .Values.serverTLSBootstrap -}}
{{- $identity := dict "mode" .Values.identity.mode -}}
{{- if eq .Values.identity.mode "Bootstrap" }}{{ $_ := set $identity "bootstrapKubeconfig" "/etc/bowline-bootstrap/kubeconfig" }}{{ end -}}
{{- $_ := set $c "identity" $identity -}}
{{- $ca := ternary "/etc/bowline/client-ca.crt" "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt" (not (empty (trim .Values.clientCA))) -}}
{{- $authentication := dict "x509" (dict "clientCAFile" $ca) -}}
{{- $_ := set $c "authentication" (mergeOverwrite $authentication (default dict $c.authentication)) -}}
{{- if .Values.localSocket.enabled }}
{{- $_ := set $identity "certificateDirectory" "/proc/self/fd/100/var/lib/bowline/pki" -}}
{{- $_ := set $authentication.x509 "clientCAFile" (printf "/proc/self/fd/100%s" $ca) -}}
{{- $_ := set $c "authentication" (mergeOverwrite $authentication (default dict .Values.config.authentication)) -}}
{{- $_ := set $c "hosts" (list (include "bowline.localHost" . | fromJson)) -}}
{{- else }}
{{- $_ := set $c "hostObjects" (dict "namespace" .Release.Namespace "template" .Values.template "replicas" dict) -}}
{{- end -}}
{{- toYaml $c -}}
{{- end -}}

{{- define "bowline.hook" -}}
"helm.sh/hook": {{ .hooks }}
"helm.sh/hook-weight": {{ .weight | quote }}
"helm.sh/hook-delete-policy": before-hook-creation,hook-succeeded
{{- end -}}

{{/* The deadline of a hook's Job in seconds: the hook's own timeout, and five minutes to pull
the image. Without a deadline, a GitOps tool would wait for a missing image forever. */}}
{{- define "bowline.hookDeadline" -}}
{{- $seconds := 300.0 -}}
{{- range regexFindAll "[0-9.]+(ms|s|m|h)" .Values.hooks.timeout -1 -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- $seconds = addf $seconds (mulf (trimSuffix $unit . | float64) (get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0) $unit)) -}}
{{- end -}}
{{- ceil $seconds | int -}}
{{- end -}}
