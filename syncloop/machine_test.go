package syncloop_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
)

// A new sandbox gets the host's current resolv.conf, or the last one that was read if it cannot be
// read now.
func TestSandboxHasTheResolvConfOfNow(t *testing.T) {
	w := newWorld(t, fake.Config{})
	var text atomic.Value
	text.Store("nameserver 192.0.2.53\n")
	w.resolv = func(context.Context) ([]byte, error) {
		if s := text.Load().(string); s != "" {
			return []byte(s), nil
		}
		return nil, errors.New("the file is being replaced")
	}
	var servers atomic.Value
	w.sandboxMade = func(c *runtimeapi.PodSandboxConfig) { servers.Store(c.GetDnsConfig().GetServers()) }
	w.up()
	ask := func(name, want string) {
		t.Helper()
		w.api.create(with(newPod(name), func(p *v1.Pod) { p.Spec.DNSPolicy = v1.DNSDefault }))
		w.untilReady(name)
		if got := servers.Load().([]string); !slices.Equal(got, []string{want}) {
			t.Errorf("pod %s asks %v, want %s", name, got, want)
		}
	}
	ask("first", "192.0.2.53")
	text.Store("nameserver 198.51.100.53\n")
	ask("after-another-lease", "198.51.100.53")
	text.Store("")
	ask("while-it-is-replaced", "192.0.2.99")
}

// When the host's address changes, the statuses of the pods on it show the new one.
func TestHostIPFollowsTheMachine(t *testing.T) {
	w := up(t)
	w.createReady(newPod("p"))
	ip := "192.0.2.77"
	w.hostIP.Store(&ip)
	w.node.loop.MachineChanged()
	w.until("the pod's status has the address", func() bool {
		s := w.api.pod("p").Status
		return s.HostIP == ip && len(s.HostIPs) == 1 && s.HostIPs[0].IP == ip
	})
	const mismatch = "HostIPsIPFamilyMismatch"
	if got := w.eventsOf(mismatch); len(got) > 0 {
		t.Errorf("an address of the same family: %q", got)
	}
	other := "2001:db8::1"
	w.hostIP.Store(&other)
	w.node.loop.MachineChanged()
	w.until("the pod's status has the address of the other family", func() bool { return w.api.pod("p").Status.HostIP == other })
	want := []string{"Pod/p : the pod's host has the IPv6 address 2001:db8::1 now, and had the IPv4 address 192.0.2.77: set nodeIP to keep one"}
	if got := w.eventsOf(mismatch); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A container has the variables of the API server and of the Services of its namespace, however
// many others the cluster has.
func TestVariablesOfServices(t *testing.T) {
	w := up(t)
	for key, ip := range map[string]string{"default/kubernetes": "10.0.0.1", "default/other": "10.0.0.2", namespace + "/own": "10.0.0.3", "elsewhere/far": "10.0.0.4"} {
		ns, name, _ := strings.Cut(key, "/")
		if err := w.services.Add(&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
			Spec: v1.ServiceSpec{ClusterIP: ip, Ports: []v1.ServicePort{{Port: 80}}}}); err != nil {
			t.Fatal(err)
		}
	}
	made := make(chan *runtimeapi.ContainerConfig, 1)
	w.rt.Inject("CreateContainer", fake.Fault{Times: -1, Match: func(req any) bool {
		select {
		case made <- req.(*runtimeapi.CreateContainerRequest).GetConfig():
		default:
		}
		return false
	}})
	w.createReady(newPod("web"))
	var hosts []string
	for _, e := range (<-made).GetEnvs() {
		if strings.HasSuffix(e.GetKey(), "_SERVICE_HOST") {
			hosts = append(hosts, e.GetKey()+"="+string(e.GetValue()))
		}
	}
	slices.Sort(hosts)
	if want := []string{"KUBERNETES_SERVICE_HOST=10.0.0.1", "OWN_SERVICE_HOST=10.0.0.3"}; !slices.Equal(hosts, want) {
		t.Errorf("it has %v, want %v", hosts, want)
	}
	w.end(1, "web")
}
