{{/* The profile for a socket of the machine that the pod runs on. "bowline join" enters the
     runtime's mount namespace; the pod's own mounts are then below /proc/self/fd/100. */}}

{{/* The node's directories. A kubelet on the machine would remove them from its own. */}}
{{- define "bowline.localDirectories" -}}
{{- $node := .Values.localSocket.nodeName -}}
{{- dict "rootDirectory" (printf "/var/lib/bowline-nodes/%s" $node) "podLogsDirectory" (printf "/var/log/bowline-nodes/%s" $node) "cgroupRoot" (printf "/bowline/%s" $node) | toJson -}}
{{- end -}}

{{/* The host as an entry of the configuration file. */}}
{{- define "bowline.localHost" -}}
{{- $s := .Values.localSocket -}}
{{- if eq $s.nodeName $s.node }}{{ fail (printf "localSocket.nodeName: %s is the machine's own node; choose another name" $s.node) }}{{ end -}}
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

{{/* Common to pods that join the runtime: they are root on this one machine. */}}
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
