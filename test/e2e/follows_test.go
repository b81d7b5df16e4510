package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// A pod starts with the host's resolv.conf as it is then: all of it with the DNS policy Default, its
// search paths with ClusterFirst. A pod that runs keeps what it has.
func TestHostResolvConf(t *testing.T) {
	serial(t)
	ns := namespace(t)
	starts := func(name, policy string) string {
		t.Helper()
		create(t, ns, brief(name, "dnsPolicy: "+policy+"\n  containers: [{name: main, image: $TOOLBOX, command: [sleep, inf]}]"))
		ready(t, ns, name)
		return inPod(t, ns, name, "cat /etc/resolv.conf")
	}
	before := starts("before", "Default")
	file := filepath.Join(lab.Host(host).Root, "etc/resolv.conf")
	was := testutil.ReadFile(t, file)
	restore := func() { testutil.Must(t, os.WriteFile(file, was, 0o644)) }
	defer restore()
	testutil.Must(t, os.WriteFile(file, []byte("# by DHCP\nsearch office.test lab.test\nnameserver 192.0.2.53\nnameserver 192.0.2.54\noptions ndots:2 timeout:1\n"), 0o644))

	text := starts("default", "Default")
	contains(t, "resolv.conf of Default", text, "search office.test lab.test", "nameserver 192.0.2.53\nnameserver 192.0.2.54", "options ndots:2 timeout:1")
	equal(t, "name servers of Default", strings.Count(text, "nameserver"), 2)
	text = starts("cluster", "ClusterFirst")
	contains(t, "resolv.conf of ClusterFirst", text, "search "+ns+".svc.cluster.local svc.cluster.local cluster.local office.test lab.test",
		"nameserver "+lab.Status.Cluster.DNSIP, "options ndots:5")
	equal(t, "name servers of ClusterFirst", strings.Count(text, "nameserver"), 1)
	equal(t, "resolv.conf of the pod from before", inPod(t, ns, "before", "cat /etc/resolv.conf"), before)
	restore()
	equal(t, "resolv.conf after the change back", starts("after", "Default"), before)
}

// Without nodeIP the node has the address of the interface with the default route. When the host loses
// that address, the Node, its pods and the API server's connections follow to the next one.
func TestHostAddressChanges(t *testing.T) {
	onlyLocal(t, "the node of a remote host has the address of its process")
	serial(t)
	ns := namespace(t)
	first := lab.Host(host).IP
	second := first[:strings.LastIndexByte(first, '.')+1] + "252" // the serving certificate is valid for it
	defaultRoute := append([]string{"ip", "route", "replace"}, strings.Fields(inHost(t, "ip", "-4", "route", "show", "default"))...)
	if len(defaultRoute) < 6 || defaultRoute[3] != "default" {
		t.Fatalf("the host's default route: %q", defaultRoute[3:])
	}
	defer func() {
		_ = lab.Exec(context.Background(), host, "ip", "link", "del", "e2e0").Run()
		onHost(t, defaultRoute...)
	}()
	for _, command := range []string{
		"ip link add e2e0 type veth peer name e2e1",
		"ip addr add " + second + "/32 dev e2e0",
		"ip link set e2e1 up",
		"ip link set e2e0 up",
		"ip route replace default dev e2e0",
	} {
		inHost(t, strings.Fields(command)...)
	}

	fixed := "  nodeIP: " + first + "\n"
	configured(t, func(text string) string {
		contains(t, "the configuration", text, fixed)
		return strings.Replace(text, fixed, "", 1)
	}, func() {
		hasAddress(t, second)
		create(t, ns, podThatSleeps("stays"))
		equal(t, "the pod's host", ready(t, ns, "stays").Status.HostIP, second)

		inHost(t, defaultRoute...)
		inHost(t, "ip", "link", "del", "e2e0")
		hasAddress(t, first)
		podIs(t, ns, "stays", patience, "has the host's other address", func(p *v1.Pod) error {
			if p.Status.HostIP != first || len(p.Status.HostIPs) != 1 || p.Status.HostIPs[0].IP != first {
				return fmt.Errorf("it has %s, %v", p.Status.HostIP, p.Status.HostIPs)
			}
			return nil
		})
		answers(t)
	})
}

// hasAddress waits until the Node has one internal address, this one.
func hasAddress(t *testing.T, ip string) {
	t.Helper()
	until(t, "the node has the address "+ip, func(ctx context.Context) error {
		node, err := lab.Client.CoreV1().Nodes().Get(ctx, host, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var all []string
		for _, a := range node.Status.Addresses {
			if a.Type == v1.NodeInternalIP {
				all = append(all, a.Address)
			}
		}
		if !slices.Equal(all, []string{ip}) {
			err = fmt.Errorf("it has %q", all)
		}
		return err
	})
}
