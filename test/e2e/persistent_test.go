package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// persistent makes a volume from a source, given as YAML, and a claim bound to it; both are named
// after the source's kind.
func persistent(t *testing.T, ns, name, source string) {
	t.Helper()
	pv := ns + "-" + name
	volume := manifest[v1.PersistentVolume](t, ns, fmt.Sprintf(`
metadata: {name: %s}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  claimRef: {namespace: $NS, name: %s}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]}]}}
  %s
`, pv, name, host, source))
	_, err := lab.Client.CoreV1().PersistentVolumes().Create(t.Context(), volume, metav1.CreateOptions{})
	testutil.Must(t, err)
	t.Cleanup(func() {
		_ = lab.Client.CoreV1().PersistentVolumes().Delete(context.Background(), pv, metav1.DeleteOptions{})
	})
	claim := manifest[v1.PersistentVolumeClaim](t, ns, fmt.Sprintf(`
metadata: {name: %s}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  volumeName: %s
  resources: {requests: {storage: 1Mi}}
`, name, pv))
	_, err = lab.Client.CoreV1().PersistentVolumeClaims(ns).Create(t.Context(), claim, metav1.CreateOptions{})
	testutil.Must(t, err)
}

// Claims bound to local and hostPath volumes, and an image as a volume: what they show by subPath,
// and that a second pod finds what the first has written.
func TestPersistentVolumes(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	dir := hostDir(t)
	testutil.Must(t, os.Mkdir(filepath.Join(dir, "local"), 0o755))
	testutil.Must(t, os.Mkdir(filepath.Join(dir, "path"), 0o755))
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "path/file"), []byte("content\n"), 0o644))
	persistent(t, ns, "local", "local: {path: "+dir+"/local}")
	persistent(t, ns, "path", "hostPath: {path: "+dir+"/path, type: Directory}")
	// The cluster's own CA, as a trust bundle.
	root, err := lab.Client.CoreV1().ConfigMaps(ns).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
	testutil.Must(t, err)
	bundle := &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: certificatesv1.ClusterTrustBundleSpec{TrustBundle: root.Data["ca.crt"]}}
	_, err = lab.Client.CertificatesV1().ClusterTrustBundles().Create(t.Context(), bundle, metav1.CreateOptions{})
	testutil.Must(t, err)
	t.Cleanup(func() {
		_ = lab.Client.CertificatesV1().ClusterTrustBundles().Delete(context.Background(), ns, metav1.DeleteOptions{})
	})
	pod := func(name, script string) string {
		return brief(name, `
  restartPolicy: Never
  securityContext: {fsGroup: 4321}
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, '`+script+`']
    volumeMounts:
    - {name: local, mountPath: /local}
    - {name: local, mountPath: /part, subPath: a/b}
    - {name: path, mountPath: /path}
    - {name: image, mountPath: /image}
    - {name: image, mountPath: /bin2, subPath: bin}
    - {name: trust, mountPath: /trust}
  volumes:
  - {name: local, persistentVolumeClaim: {claimName: local}}
  - {name: path, persistentVolumeClaim: {claimName: path, readOnly: true}}
  - {name: image, image: {reference: $TOOLBOX}}
  - {name: trust, projected: {sources: [{clusterTrustBundle: {name: $NS, path: ca.pem}}]}}
`)
	}
	p := create(t, ns, pod("writes", `cat /path/file; touch /path/x 2>/dev/null || echo read-only; echo kept >/local/a/b/kept && cat /part/kept; touch /image/x 2>/dev/null || echo an image; ls /image; ls /bin2; head -n 1 /trust/ca.pem`))
	ended(t, ns, "writes", v1.PodSucceeded)
	contains(t, "the pod's log", logs(t, ns, "writes"), "content\n", "read-only\n", "kept\n", "an image\n", "bin\n", "sh\n", "BEGIN CERTIFICATE")
	if info, err := os.Stat(filepath.Join(dir, "local")); err != nil || info.Mode()&os.ModeSetgid == 0 {
		t.Errorf("the local volume is %v, %v, without the pod's group", info.Mode(), err)
	}
	kubectl(t, "delete", "pod", "-n", ns, "writes", "--wait=true", "--timeout=60s")
	until(t, "nothing of the pod is mounted", unmounted(t, string(p.UID)))
	create(t, ns, pod("reads", `cat /local/a/b/kept`))
	ended(t, ns, "reads", v1.PodSucceeded)
	equal(t, "what the second pod finds", logs(t, ns, "reads"), "kept\n")
	// A claim without a volume holds the pod, with the kubelet's message. The pod bypasses the
	// scheduler, which would hold it back.
	_, err = lab.Client.CoreV1().PersistentVolumeClaims(ns).Create(t.Context(), manifest[v1.PersistentVolumeClaim](t, ns, `
metadata: {name: unbound}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: none, resources: {requests: {storage: 1Mi}}}
`), metav1.CreateOptions{})
	testutil.Must(t, err)
	create(t, ns, brief("waits", `
  nodeName: `+host+`
  containers: [{name: main, image: $TOOLBOX, command: [sleep, inf], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: unbound}}]
`))
	contains(t, "the event", event(t, ns, "waits", "FailedMount"), "PVC is not bound")
}
