package monitoring

import (
	"fmt"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// volumeDir is the directory of a local volume on each host.
const volumeDir = "/var/lib/monitored"

// podObjects are a pod that computes and writes, a claim of a local volume, and a pod whose image
// does not exist, so that an operation fails. %[1]s is the node.
const podObjects = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: monitored-%[1]s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  claimRef: {namespace: monitored, name: claim-%[1]s}
  local: {path: ` + volumeDir + `}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%[1]s]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim-%[1]s, namespace: monitored}
spec: {storageClassName: "", volumeName: monitored-%[1]s, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: work-%[1]s, namespace: monitored}
spec:
  nodeSelector: {kubernetes.io/hostname: %[1]s}
  terminationGracePeriodSeconds: 1
  containers:
  - name: work
    image: registry.lab/toolbox:lab
    command: [sh, -c, "while :; do i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; dd if=/dev/zero of=/data/file bs=64k count=4 conv=fsync 2>/dev/null; sleep 0.1; done"]
    resources: {requests: {cpu: 20m, memory: 16Mi}, limits: {cpu: 100m, memory: 64Mi}}
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 10}
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: claim-%[1]s}}]
---
apiVersion: v1
kind: Pod
metadata: {name: fails-%[1]s, namespace: monitored}
spec:
  nodeSelector: {kubernetes.io/hostname: %[1]s}
  terminationGracePeriodSeconds: 1
  containers:
  - name: fails
    image: registry.lab/none:v1
    resources: {requests: {cpu: 1m, memory: 1Mi}, limits: {cpu: 1m, memory: 1Mi}}
`

// quotaObjects is a quota, so that the queries about quotas have something to show.
const quotaObjects = `
apiVersion: v1
kind: ResourceQuota
metadata: {name: quota, namespace: monitored}
spec: {hard: {pods: "100", requests.cpu: "2", requests.memory: 1Gi, limits.cpu: "4", limits.memory: 2Gi}}
`

func (r *rig) makePods() {
	r.t.Helper()
	r.apply(r.t, quotaObjects)
	for _, node := range []string{localHost, remoteHost} {
		out, err := r.lab.Exec(r.t.Context(), node, "mkdir", "-p", volumeDir).CombinedOutput()
		if err != nil {
			r.t.Fatalf("make the volume's directory on %s: %v %s", node, err, out)
		}
		r.apply(r.t, fmt.Sprintf(strings.TrimSpace(podObjects), node))
	}
	for _, node := range []string{localHost, remoteHost} {
		_, err := r.lab.PodReady(r.t.Context(), namespace, "work-"+node, 2*time.Minute)
		testutil.Must(r.t, err)
		// /metrics/slis counts the health checks of which something has asked.
		_, err = r.lab.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", node, "proxy/healthz").DoRaw(r.t.Context())
		testutil.Must(r.t, err)
	}
}
