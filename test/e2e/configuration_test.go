package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// everyField sets every field with a visible effect to a value other than the default. The runtime
// of a second host does not exist, which must not affect the first.
const everyField = `apiVersion: bowline.io/v1alpha1
kind: BowlineConfiguration
kubeconfig: KUBECONFIG
registerWithTaints: [{key: example.com/lent, effect: PreferNoSchedule}]
podPidsLimit: 77
userNamespaces: {idsPerPod: 131072}
maxPods: 500
podsPerCore: 7
crashLoopBackOff: {maxContainerRestartPeriod: 2s}
kubeAPIQPS: 40
kubeAPIBurst: 80
eventRecordQPS: 0
registryPullQPS: 2
registryBurst: 2
tlsMinVersion: VersionTLS12
tlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]
tlsCurvePreferences: [29]
streamingConnectionIdleTimeout: 5s
cpuCFSQuota: false
cgroupRoot: /mine
clusterDNS: [10.9.8.7]
clusterDomain: dom.example
systemReserved: {cpu: 250m, memory: 1Gi}
kubeReserved: {cpu: 250m}
nodeLeaseDurationSeconds: 20
nodeStatusMaxImages: 1
volumeStatsAggPeriod: -1s
podLogsDirectory: /var/log/pods/own
containerLogMaxSize: 64Ki
containerLogMaxFiles: 2
containerLogMaxWorkers: 2
containerLogMonitorInterval: 3s
evictionHard: {nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
mergeDefaultEvictionSettings: true
imageGCHighThresholdPercent: 100
imageCredentialProviderConfig: credentials.yaml
imageCredentialProviderBinDir: providers
authentication:
  anonymous: {enabled: true}
  webhook: {enabled: false}
  x509: {clientCAFile: CLIENTCA}
authorization: {mode: AlwaysAllow}
hosts:
- nodeName: host1
  nodeIP: NODEIP
  labels: {example.com/rack: r1}
  taints: [{key: a, value: b, effect: PreferNoSchedule}]
  rootDirectory: /var/lib/kubelet/link
  server: {port: 10777, tlsCertFile: CERT, tlsPrivateKeyFile: KEY}
- nodeName: host2
  endpoint: /run/no-runtime.sock
  rootDirectory: /var/lib/kubelet/host2
  server: {port: 10778}
`

// The configuration takes effect on the node, the pod and the endpoint.
func TestConfigurationTakesEffect(t *testing.T) {
	onlyLocal(t, "the configuration is the same for a remote host")
	parallel(t)
	ctx := t.Context()
	own := ownLab(t, 1)
	h := own.Host(host)
	// The root directory is a symbolic link: mounts show its target.
	testutil.Must(t, os.MkdirAll(filepath.Join(h.Root, "var/lib/kubelet/real"), 0o755))
	testutil.Must(t, os.Symlink("real", filepath.Join(h.Root, "var/lib/kubelet/link")))
	file := filepath.Join(own.Dir, "every-field.yaml")
	testutil.Must(t, os.WriteFile(file, []byte(strings.NewReplacer("KUBECONFIG", h.NodeKubeconfig, "CLIENTCA", h.ClientCA, "NODEIP", h.IP,
		"CERT", h.Serving.Cert, "KEY", h.Serving.Key).Replace(everyField)), 0o644))
	asked := credentialProvider(t, own)
	b := &labtest.Bowline{Lab: own, Host: host, Config: file}
	testutil.Must(t, b.Start())
	t.Cleanup(b.Kill)
	if _, err := own.NodeReady(ctx, host, v1.ConditionTrue, 2*time.Minute); err != nil {
		t.Fatalf("%v\n%s", err, b.LogTail(4000))
	}

	n := getNode(t, own)
	var taints []string
	for _, taint := range n.Spec.Taints {
		if taint.Key != v1.TaintNodeNotReady { // the controller manager removes it in its own time
			taints = append(taints, taint.ToString())
		}
	}
	slices.Sort(taints)
	reserved := n.Status.Capacity.Memory().Value() - n.Status.Allocatable.Memory().Value()
	for what, c := range map[string][2]any{
		"taints":      {strings.Join(taints, " "), "a=b:PreferNoSchedule example.com/lent:PreferNoSchedule"},
		"label":       {n.Labels["example.com/rack"], "r1"},
		"pods":        {n.Status.Capacity.Pods().Value(), 7 * n.Status.Capacity.Cpu().Value()},
		"cpu less by": {n.Status.Capacity.Cpu().MilliValue() - n.Status.Allocatable.Cpu().MilliValue(), int64(500)},
		"memory by":   {reserved, int64(1124) << 20}, // 100Mi are the default threshold, which is merged
		"port":        {n.Status.DaemonEndpoints.KubeletEndpoint.Port, int32(10777)},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: %v, want %v", what, c[0], c[1])
		}
	}
	until(t, "one image of all", func(context.Context) error {
		if images := getNode(t, own).Status.Images; len(images) != 1 {
			return fmt.Errorf("the node lists %d images", len(images))
		}
		return nil
	})
	until(t, "a lease of 20 s", func(ctx context.Context) error {
		lease, err := own.Client.CoordinationV1().Leases("kube-node-lease").Get(ctx, host, metav1.GetOptions{})
		if err == nil && *lease.Spec.LeaseDurationSeconds != 20 {
			err = fmt.Errorf("it lasts %d s", *lease.Spec.LeaseDurationSeconds)
		}
		return err
	})

	p := manifest[v1.Pod](t, "default", `
metadata: {name: p}
spec:
  containers:
  - {name: c, image: $TOOLBOX, command: [sleep, infinity], resources: {limits: {cpu: 100m, memory: 32Mi}}}
`)
	_, err := own.Client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	testutil.Must(t, err)
	p, err = own.PodReady(ctx, "default", "p", 60*time.Second)
	if err != nil {
		t.Fatalf("%v\n%s", err, b.LogTail(4000))
	}
	out, err := own.Kubectl(ctx, "exec", "p", "--", "cat", "/etc/resolv.conf")
	if err != nil || !strings.Contains(out.Stdout, "nameserver 10.9.8.7\n") || !strings.Contains(out.Stdout, "search default.svc.dom.example ") {
		t.Errorf("resolv.conf: %v\n%s%s", err, out.Stdout, out.Stderr)
	}
	pods, err := filepath.Glob(filepath.Join(h.Root, "var/log/pods/own/default_p_*/c/0.log"))
	if err != nil || len(pods) != 1 {
		t.Errorf("logs: %v %v", pods, err)
	}
	if _, err := os.Stat(filepath.Join(h.Root, "var/lib/kubelet/real/pods", string(p.UID))); err != nil {
		t.Errorf("volumes: %v", err)
	}
	// A guaranteed pod's cgroup is directly below kubepods, in the tree of either version.
	cgroup := filepath.Join(h.Cgroup, "mine/kubepods/pod"+string(p.UID))
	for name, want := range map[string]string{"pids/%s/pids.max": "77", "cpu/%s/cpu.cfs_quota_us": "-1"} {
		path := filepath.Join("/sys/fs/cgroup", fmt.Sprintf(name, cgroup))
		unified := filepath.Join("/sys/fs/cgroup", cgroup, filepath.Base(name))
		data, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) && want == "77" {
			data, err = os.ReadFile(unified)
		}
		if got := strings.TrimSpace(string(data)); err == nil && got != want || err != nil && want == "77" {
			t.Errorf("%s: %q %v, want %s", path, got, err, want)
		}
	}

	providerWasAsked(t, own, b, asked, filepath.Join(h.Root, "var/lib/kubelet/real/bowline/pulls.json"))
	limitsFollowPods(t, own, b)

	widerUsers(t, own)
	crashesSoon(t, own)
	for name, c := range map[string]*tls.Config{
		"TLS 1.1":       {MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10},
		"another suite": {MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384}},
		"another curve": {CurvePreferences: []tls.CurveID{tls.CurveP384}},
		"":              {MaxVersion: tls.VersionTLS12},
	} {
		c.InsecureSkipVerify = true
		connection, err := tls.Dial("tcp", h.IP+":10777", c)
		if (err == nil) != (name == "") {
			t.Errorf("a client with %q: %v", name, err)
		}
		if err == nil {
			connection.Close()
		}
	}

	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	reply, err := client.Get(fmt.Sprintf("https://%s:10777/pods", h.IP))
	testutil.Must(t, err)
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	testutil.Must(t, err)
	if reply.StatusCode != http.StatusOK || !strings.Contains(string(body), string(p.UID)) {
		t.Errorf("without a credential the endpoint says %d %.200s", reply.StatusCode, body)
	}

	reply, err = client.Get(fmt.Sprintf("https://%s:10777/stats/summary", h.IP))
	testutil.Must(t, err)
	defer reply.Body.Close()
	body, err = io.ReadAll(reply.Body)
	testutil.Must(t, err)
	if !strings.Contains(string(body), string(p.UID)) || strings.Contains(string(body), `"volume":`) {
		t.Errorf("the statistics lack the pod, or have volumes: %s", body)
	}

	log := testutil.ReadFile(t, b.LogPath)
	failure := []string{`"Failed to manage the host, will retry"`, `host="host2"`}
	if len(linesOf(string(log), failure...)) == 0 {
		t.Errorf("the log does not say that host2, which has no runtime, cannot be managed:\n%s", log)
	}
	testutil.Must(t, own.Client.CoreV1().Pods("default").Delete(ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	testutil.Must(t, own.PodGone(ctx, "default", "p", 2*time.Minute))
	testutil.Must(t, b.Stop())
	log = testutil.ReadFile(t, b.LogPath)
	for line := range strings.Lines(string(log)) {
		if !strings.HasPrefix(line, "I") && len(linesOf(line, failure...)) == 0 {
			t.Errorf("its log has %q", line)
		}
	}
}

// widerUsers: a pod with users of its own has as many IDs as are configured, if the runtime supports this.
func widerUsers(t *testing.T, own *labtest.Lab) {
	t.Helper()
	ctx := t.Context()
	if !slices.ContainsFunc(getNode(t, own).Status.RuntimeHandlers, func(h v1.NodeRuntimeHandler) bool {
		return h.Name == "" && h.Features != nil && ptr.Deref(h.Features.UserNamespaces, false)
	}) {
		return
	}
	p := manifest[v1.Pod](t, "default", "metadata: {name: users}\nspec:\n  hostUsers: false\n  containers: [{name: c, image: $TOOLBOX, command: [sleep, infinity]}]\n")
	_, err := own.Client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	testutil.Must(t, err)
	_, err = own.PodReady(ctx, "default", "users", 60*time.Second)
	testutil.Must(t, err)
	out, err := own.Kubectl(ctx, "exec", "users", "--", "cat", "/proc/self/uid_map")
	if f := strings.Fields(out.Stdout); err != nil || len(f) != 3 || f[1] == "0" || f[2] != "131072" {
		t.Errorf("the IDs of a pod: %v\n%s%s", err, out.Stdout, out.Stderr)
	}
	testutil.Must(t, own.Client.CoreV1().Pods("default").Delete(ctx, "users", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	testutil.Must(t, own.PodGone(ctx, "default", "users", 60*time.Second))
}

// crashesSoon: a container that crashes again and again restarts every 2 s.
func crashesSoon(t *testing.T, own *labtest.Lab) {
	t.Helper()
	ctx := t.Context()
	p := manifest[v1.Pod](t, "default", "metadata: {name: crashes}\nspec:\n  containers: [{name: c, image: $TOOLBOX, command: [\"false\"]}]\n")
	_, err := own.Client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	testutil.Must(t, err)
	until(t, "five restarts", func(ctx context.Context) error {
		p, err := own.Client.CoreV1().Pods("default").Get(ctx, "crashes", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.ContainerStatuses {
			if w := c.State.Waiting; w != nil && strings.HasPrefix(w.Message, "back-off") && !strings.HasPrefix(w.Message, "back-off 2s ") {
				t.Errorf("it waits: %s", w.Message)
			}
			if c.RestartCount >= 5 {
				return nil
			}
		}
		return fmt.Errorf("its status is %+v", p.Status.ContainerStatuses)
	})
	testutil.Must(t, own.Client.CoreV1().Pods("default").Delete(ctx, "crashes", metav1.DeleteOptions{}))
	testutil.Must(t, own.PodGone(ctx, "default", "crashes", 60*time.Second))
}

// limitsFollowPods: the limit of all pods excludes what is reserved, and that of the burstable pods
// is the sum of their requests as they come and go. The new pod fills its log, which never has more
// than two files.
func limitsFollowPods(t *testing.T, own *labtest.Lab, b *labtest.Bowline) {
	t.Helper()
	ctx, h := t.Context(), own.Host(host)
	n := getNode(t, own)
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	v1Files := err != nil // the names below are those of v1
	wait := func(what, controller, cgroup string, want func(context.Context) (string, error)) {
		t.Helper()
		if !v1Files {
			return
		}
		until(t, what, func(ctx context.Context) error {
			value, err := want(ctx)
			if err != nil {
				return err
			}
			file := map[string]string{"cpu": "cpu.shares", "memory": "memory.limit_in_bytes"}[controller]
			data, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", controller, h.Cgroup, "mine", cgroup, file))
			if got := strings.TrimSpace(string(data)); err == nil && got != value {
				err = fmt.Errorf("%s is %s, not %s", file, got, value)
			}
			return err
		})
	}
	is := func(n int64) func(context.Context) (string, error) {
		return func(context.Context) (string, error) { return fmt.Sprint(n), nil }
	}
	wait("the memory of all pods", "memory", "kubepods", is(n.Status.Capacity.Memory().Value()-1<<30))
	wait("the CPU of all pods", "cpu", "kubepods", is((n.Status.Capacity.Cpu().MilliValue()-500)*1024/1000))
	requested := func(ctx context.Context) (string, error) {
		list, err := own.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + host})
		sum := int64(0)
		for _, p := range list.Items {
			if p.Status.QOSClass == v1.PodQOSBurstable && p.Status.Phase != v1.PodSucceeded && p.Status.Phase != v1.PodFailed {
				for _, c := range p.Spec.Containers {
					sum += c.Resources.Requests.Cpu().MilliValue()
				}
			}
		}
		return fmt.Sprint(max(sum*1024/1000, 2)), err
	}
	wait("the CPU of burstable pods", "cpu", "kubepods/burstable", requested)
	p := manifest[v1.Pod](t, "default", `
metadata: {name: more}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: $TOOLBOX
    command: [sh, -c, "while :; do n=0; while [ $n -lt 3000 ]; do echo a line of the log that is counted $n; n=$((n+1)); done; sleep 2; done"]
    resources: {requests: {cpu: 300m}}
`)
	p, err = own.Client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	testutil.Must(t, err)
	if _, err := own.PodReady(ctx, "default", "more", 60*time.Second); err != nil {
		t.Fatalf("%v\n%s", err, b.LogTail(4000))
	}
	wait("the CPU of burstable pods with one more", "cpu", "kubepods/burstable", requested)
	pattern := filepath.Join(h.Root, "var/log/pods/own/default_more_"+string(p.UID), "c/0.log")
	before := ""
	until(t, "two rotations, and no third file", func(context.Context) error {
		now, err := filepath.Glob(pattern + ".*")
		switch {
		case err != nil:
			return err
		case len(now) == 1 && before == "":
			before = now[0]
		case len(now) == 1 && now[0] != before:
			return nil
		}
		return fmt.Errorf("%v, after %s", now, before)
	})
	testutil.Must(t, own.Client.CoreV1().Pods("default").Delete(ctx, "more", metav1.DeleteOptions{}))
	testutil.Must(t, own.PodGone(ctx, "default", "more", 60*time.Second))
	wait("the CPU of burstable pods with one less", "cpu", "kubepods/burstable", requested)
}
