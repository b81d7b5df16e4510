package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

func TestSecurityContext(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	create(t, ns, brief("careful", `
  securityContext: {runAsUser: 1234, runAsGroup: 2345, supplementalGroups: [3456], fsGroup: 4567}
  hostname: named
  containers:
  - name: main
    image: $TOOLBOX
    command: [sleep, inf]
    securityContext:
      runAsNonRoot: true
      readOnlyRootFilesystem: true
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}
    volumeMounts: [{name: scratch, mountPath: /scratch}]
  - name: other
    image: $TOOLBOX
    command: [sleep, inf]
    securityContext: {runAsUser: 0, capabilities: {add: [NET_ADMIN], drop: [CHOWN]}}
  volumes: [{name: scratch, emptyDir: {}}]
`))
	create(t, ns, brief("rooted", "containers: [{name: main, image: $TOOLBOX, command: [sleep, inf], securityContext: {runAsNonRoot: true, runAsUser: 0}}]"))
	ready(t, ns, "careful")
	got := inPod(t, ns, "careful", "id; hostname; touch /file 2>&1 || echo no-write; touch /scratch/file && echo write; stat -c '%u %g ' /scratch/file; cat /proc/self/status | grep Cap; cat /proc/self/status | grep NoNewPrivs")
	contains(t, "in the pod", got, "uid=1234", "gid=2345", "3456", "4567", "named", "no-write", "\nwrite", "1234 4567 ", "CapBnd:\t0000000000000400", "NoNewPrivs:\t1")
	// NET_ADMIN is bit 12, CHOWN bit 0.
	bounds := kubectl(t, "exec", "-n", ns, "careful", "-c", "other", "--", "sh", "-c", "grep CapEff /proc/self/status; id")
	if !strings.Contains(bounds, "00000000a80435fa") && !strings.Contains(bounds, "00000000a80635fa") && !strings.Contains(bounds, "35fa") {
		t.Errorf("with NET_ADMIN and without CHOWN: %q", bounds)
	}
	contains(t, "the reason", waiting(t, ns, "rooted", "main", "CreateContainerConfigError").Message, "root")
}

// Names resolve in a pod, and a Service's address leads to its pods.
func TestServicesAndNames(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	create(t, ns, `
metadata: {name: served, labels: {app: served}}
spec:
  terminationGracePeriodSeconds: 1
  hostname: served
  subdomain: web
  containers:
  - {name: box, image: $TOOLBOX, command: [sleep, inf]}
  - {name: web, image: $WEB, readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}}
`)
	create(t, ns, brief("asks", `
  hostAliases: [{ip: 10.1.2.3, hostnames: [alias.test]}]
  containers: [{name: main, image: $TOOLBOX, command: [sleep, inf]}]
`))
	create(t, ns, brief("on-host", `
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  containers: [{name: main, image: $TOOLBOX, command: [sleep, inf]}]
`))
	create(t, ns, brief("own-dns", `
  dnsPolicy: None
  dnsConfig: {nameservers: [10.9.9.9], searches: [example.test], options: [{name: ndots, value: "3"}]}
  containers: [{name: main, image: $TOOLBOX, command: [sleep, inf]}]
`))
	_, err := lab.Client.CoreV1().Services(ns).Create(t.Context(), manifest[v1.Service](t, ns, `
metadata: {name: web}
spec: {selector: {app: served}, ports: [{port: 80, targetPort: 8080}]}
`), metav1.CreateOptions{})
	testutil.Must(t, err)
	served := ready(t, ns, "served")
	asks := ready(t, ns, "asks")
	for _, name := range []string{"web", "web." + ns, "web." + ns + ".svc.cluster.local"} {
		until(t, name, answer(ns, "asks", "timeout 2 wget -q -O - http://"+name+"/", "served\nversion v1"))
	}
	until(t, "the pod's own name", answer(ns, "asks", "timeout 2 wget -q -O - http://served.web:8080/", "version v1"))
	onHost := ready(t, ns, "on-host")
	until(t, "the Service from the host's network", answer(ns, "on-host", "timeout 2 wget -q -O - http://web."+ns+"/", "version v1"))
	if onHost.Status.PodIP != lab.Host(host).IP || onHost.Status.HostIP != lab.Host(host).IP {
		t.Errorf("on the host's network the pod is %s on %s", onHost.Status.PodIP, onHost.Status.HostIP)
	}
	contains(t, "resolv.conf", inPod(t, ns, "asks", "cat /etc/resolv.conf"), "nameserver "+lab.Status.Cluster.DNSIP,
		"search "+ns+".svc.cluster.local svc.cluster.local cluster.local", "ndots:5")
	contains(t, "/etc/hosts", inPod(t, ns, "asks", "cat /etc/hosts"), "10.1.2.3\talias.test", asks.Status.PodIP+"\tasks")
	contains(t, "/etc/hosts of one with a subdomain", inPod(t, ns, "served", "cat /etc/hosts"), served.Status.PodIP+"\tserved.web."+ns+".svc.cluster.local\tserved")
	ready(t, ns, "own-dns")
	equal(t, "resolv.conf of its own", inPod(t, ns, "own-dns", "cat /etc/resolv.conf"), "search example.test\nnameserver 10.9.9.9\noptions ndots:3")
	if !strings.HasPrefix(served.Status.PodIP, "10.") || len(served.Status.PodIPs) != 1 || served.Status.HostIP != lab.Host(host).IP {
		t.Errorf("pod %v on %s", served.Status.PodIPs, served.Status.HostIP)
	}
}

// Each QoS class has its cgroup, and each limit its file.
func TestCgroups(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	one := func(name, resources string) {
		create(t, ns, brief(name, "containers: [{name: main, image: $TOOLBOX, command: [sleep, inf], resources: {"+resources+"}}]"))
	}
	one("guaranteed", "limits: {cpu: 200m, memory: 64Mi}")
	one("burstable", "requests: {cpu: 100m, memory: 16Mi}, limits: {memory: 32Mi}")
	one("besteffort", "")
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		t.Skip("the files named here are of cgroup v1")
	}
	base := func(controller string) string { return "/sys/fs/cgroup/" + controller + "/" + lab.Host(host).Cgroup }
	for _, c := range []struct {
		name, parent, controller, file, want string
		container                            bool
	}{
		{"guaranteed", "kubepods", "cpu", "cpu.shares", "204", false},
		{"guaranteed", "kubepods", "cpu", "cpu.cfs_quota_us", "20000", false},
		{"guaranteed", "kubepods", "memory", "memory.limit_in_bytes", "67108864", false},
		{"guaranteed", "kubepods", "memory", "memory.limit_in_bytes", "67108864", true},
		{"burstable", "kubepods/burstable", "cpu", "cpu.shares", "102", false},
		{"burstable", "kubepods/burstable", "cpu", "cpu.shares", "102", true},
		{"burstable", "kubepods/burstable", "cpu", "cpu.cfs_quota_us", "-1", true},
		{"burstable", "kubepods/burstable", "memory", "memory.limit_in_bytes", "33554432", true},
		{"besteffort", "kubepods/besteffort", "cpu", "cpu.shares", "2", false},
		{"besteffort", "kubepods/besteffort", "cpu", "cpu.shares", "2", true},
	} {
		p := ready(t, ns, c.name)
		path := filepath.Join(base(c.controller), c.parent, "pod"+string(p.UID))
		if c.container {
			path = filepath.Join(path, strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://"))
		}
		data, err := os.ReadFile(filepath.Join(path, c.file))
		if got := strings.TrimSpace(string(data)); err != nil || got != c.want {
			t.Errorf("%s: %s of %s is %q, not %s (%v)", c.name, c.file, path, got, c.want, err)
		}
		equal(t, "the class of "+c.name, p.Status.QOSClass,
			map[string]v1.PodQOSClass{"guaranteed": v1.PodQOSGuaranteed, "burstable": v1.PodQOSBurstable, "besteffort": v1.PodQOSBestEffort}[c.name])
	}
	// The cgroups above them: all pods together may use the machine, and the best-effort pods get
	// the least. The burstable share changes with the pods (TestConfigurationTakesEffect).
	n := getNode(t, lab)
	for _, c := range []struct{ parent, controller, file, want string }{
		{"kubepods", "cpu", "cpu.shares", fmt.Sprint(n.Status.Capacity.Cpu().MilliValue() * 1024 / 1000)},
		{"kubepods", "memory", "memory.limit_in_bytes", fmt.Sprint(n.Status.Capacity.Memory().Value())},
		{"kubepods/besteffort", "cpu", "cpu.shares", "2"},
	} {
		until(t, c.parent+" has its limits", func(context.Context) error {
			path := filepath.Join(base(c.controller), c.parent, c.file)
			data, err := os.ReadFile(path)
			if got := strings.TrimSpace(string(data)); err == nil && got != c.want {
				err = fmt.Errorf("%s is %q, not %s", path, got, c.want)
			}
			return err
		})
	}
	// The pod-level resources apply to the pod's cgroup, whatever its containers have.
	create(t, ns, brief("whole", `
  resources: {requests: {cpu: 300m, memory: 64Mi}, limits: {cpu: 400m, memory: 96Mi}}
  containers:
  - {name: main, image: $TOOLBOX, command: [sleep, inf], resources: {requests: {cpu: 100m}, limits: {memory: 64Mi}}}
  - {name: other, image: $TOOLBOX, command: [sleep, inf]}
`))
	whole := ready(t, ns, "whole")
	for _, c := range [][3]string{{"cpu", "cpu.shares", "307"}, {"cpu", "cpu.cfs_quota_us", "40000"}, {"memory", "memory.limit_in_bytes", "100663296"}} {
		path := filepath.Join(base(c[0]), "kubepods/burstable/pod"+string(whole.UID), c[1])
		data, err := os.ReadFile(path)
		if got := strings.TrimSpace(string(data)); err != nil || got != c[2] {
			t.Errorf("whole: %s is %q, not %s (%v)", path, got, c[2], err)
		}
	}
	// The cgroup goes with the pod, from every hierarchy.
	testutil.Must(t, lab.Client.CoreV1().Pods(ns).Delete(t.Context(), "whole", metav1.DeleteOptions{}))
	until(t, "the pod's cgroup is gone", func(context.Context) error {
		left, err := filepath.Glob("/sys/fs/cgroup/*/" + lab.Host(host).Cgroup + "/kubepods/burstable/pod" + string(whole.UID))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left: %v", left)
		}
		return err
	})
	// Exceeding the limit kills the container, with the well-known reason.
	create(t, ns, `
metadata: {name: greedy}
spec:
  restartPolicy: Never
  containers: [{name: main, image: $TOOLBOX, command: [alloc, 200M, "30"], resources: {limits: {memory: 32Mi}}}]
`)
	p := ended(t, ns, "greedy", v1.PodFailed)
	if s := p.Status.ContainerStatuses[0].State.Terminated; s.Reason != "OOMKilled" || s.ExitCode != 137 {
		t.Errorf("it ended as %v", s)
	}
	// The machine has memory, so there must be no event that it has none. (test/vm tests that
	// case.)
	until(t, "the kernel's count of kills is looked at", func(context.Context) error {
		log, err := os.ReadFile(bowline.LogPath)
		if err == nil && !strings.Contains(string(log), "Detected system OOM kills") {
			err = errors.New("it was not yet")
		}
		return err
	})
	list, err := lab.Client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=SystemOOM"})
	testutil.Must(t, err)
	for _, e := range list.Items {
		t.Errorf("of a container's own limit it is reported: %s", e.Message)
	}
}

// A pod that exceeds its deadline fails with the reason.
func TestActiveDeadline(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	create(t, ns, brief("timed", `
  activeDeadlineSeconds: 4
  containers: [{name: main, image: $TOOLBOX, command: [sleep, inf]}]
`))
	begin := time.Now()
	p := ended(t, ns, "timed", v1.PodFailed)
	equal(t, "the reason", p.Status.Reason, "DeadlineExceeded")
	// Without a timer of its own, the deadline would be noticed at the periodic sync, after a minute.
	if took := time.Since(begin); took > 45*time.Second {
		t.Errorf("a deadline of 4 s took %s", took)
	}
}
