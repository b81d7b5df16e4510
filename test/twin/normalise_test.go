package twin

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestNormaliserText: what the normaliser removes from texts, and what it keeps.
func TestNormaliserText(t *testing.T) {
	r := Recording{Node: "host1", HostIP: "10.1.0.1", Namespace: "twin-a", Entries: []Entry{{Pod: &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID("static-uid")},
		Status:     v1.PodStatus{PodIPs: []v1.PodIP{{IP: "10.200.3.17"}}}}}}}
	n := normaliser{own: newReplacer(r)}
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for in, want := range map[string]string{
		"back-off 10s restarting failed container=main pod=x_twin-a(0123abcd-0000-4000-8000-0123456789ab)": "back-off 10s restarting failed container=main pod=x_NAMESPACE(UID)",
		"pod=x-host1_twin-a(static-uid)": "pod=x-NODE_NAMESPACE(UID)",
		"containerd://" + id:             "CONTAINER", "registry.lab/web@sha256:" + id: "registry.lab/web@DIGEST", `task "` + id + `" failed`: `task "ID" failed`,
		"pod=x-host1_twin-a(0123456789abcdef0123456789abcdef)": "pod=x-NODE_NAMESPACE(UID)",
		"kube-api-access-x2x4z":                                "kube-api-access", "kube-api-access": "kube-api-access",
		"2026-11-23T06:28:41Z": "TIME", "2026-11-23T06:28:41.123456Z": "TIME",
		`Successfully pulled image "i" in 12ms (1.034s including waiting). Image size: 7 bytes.`: `Successfully pulled image "i" in SPAN (SPAN including waiting). Image size: 7 bytes.`,
		"dial tcp 10.200.3.17:8080: connect: connection refused":                                 "dial tcp PODIP:8080: connect: connection refused",
		"read tcp 10.200.3.1:34567->10.200.3.17:8080: reset":                                     "read tcp GATEWAY:PORT->PODIP:8080: reset",
		"10.1.0.1": "HOSTIP", "exit code 137, 3 of 4, 0x7f, v1.37.1": "exit code 137, 3 of 4, 0x7f, v1.37.1",
	} {
		if got := n.text(in); got != want {
			t.Errorf("%q: %q, not %q", in, got, want)
		}
	}
}
