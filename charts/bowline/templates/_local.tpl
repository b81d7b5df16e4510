{{/* The profile for a socket of the machine that the pod runs on. What the pod itself has
     mounted is below /proc/self/fd/100, as it has joined the runtime ("bowline join"). */}}

{{/* Where the node has what a kubelet on the machine must not find: it would take it away. */}}
{{- define "bowline.localDirectories" -}}
{{- $node := .Values.localSocket.nodeName -}}
{{- dict "rootDirectory" (printf "/var/lib/bowline-nodes/%s" $node) "podLogsDirectory" (printf "/var/log/bowline-nodes/%s" $node) "cgroupRoot" (printf "/bowline/%s" $node) | toJson -}}
{{- end -}}

{{/* The host, as the configuration has it. */}}
{{- define "bowline.localHost" -}}
{{- $s := .Values.localSocket -}}
{{- if eq $s.nodeName $s.node }}{{ fail (printf "localSocket.nodeName: %s is the node that the machine is already; choose another name for the second runtime's" $s.node) }}{{ end -}}
{{- $host := mergeOverwrite (deepCopy .Values.template) (include "bowline.localDirectories" . | fromJson) (deepCopy $s.host) -}}
{{- $_ := set $host "taints" (concat (.Values.template.taints | default list) ($s.host.taints | default list)) -}}
{{- with $host.providerID }}{{ $_ := set $host "providerID" (replace "{nodeName}" $s.nodeName .) }}{{ end -}}
{{- $_ := set $host "nodeName" $s.nodeName -}}
{{- $_ := set $host "endpoint" $s.endpoint -}}
{{- $_ := set $host "kubeconfig" "/proc/self/fd/100/var/lib/bowline/account.kubeconfig" -}}
{{- $_ := set $host "server" (dict "port" $s.port) -}}
{{- toJson $host -}}
{{- end -}}

{{- define "bowline.localSocketPath" -}}
{{- trimPrefix "unix://" .Values.localSocket.endpoint -}}
{{- end -}}

{{/* What a pod is that joins the runtime: root on the machine, on that machine alone. */}}
{{- define "bowline.localPod" -}}
hostPID: true
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [{{ .Values.localSocket.node | quote }}]}]}]
tolerations: {{ .Values.tolerations | default (list (dict "operator" "Exists")) | toJson }}
volumes:
- name: runtime
  hostPath: {path: {{ include "bowline.localSocketPath" . | dir }}, type: Directory}
- name: configuration
  configMap: {name: {{ include "bowline.name" . }}, optional: true}
- name: own
  emptyDir: {sizeLimit: 64Mi}
{{- end -}}

{{- define "bowline.localContainer" -}}
image: {{ include "bowline.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {privileged: true, runAsUser: 0, readOnlyRootFilesystem: true}
volumeMounts:
- {name: runtime, mountPath: {{ include "bowline.localSocketPath" . | dir }}}
- {name: configuration, mountPath: /etc/bowline, readOnly: true}
- {name: own, mountPath: /var/lib/bowline}
{{- end -}}
