package twin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// node is a node of the lab, a kubelet's or Bowline's.
type node struct {
	name, ip  string
	namespace string
	manifests string // directory of static pods, seen from outside the host
}

// Images of most scenarios.
const (
	toolbox = "registry.lab/toolbox:lab"
	web     = "registry.lab/web:v1"
)

// nodeNames: the nodes of two kubelets, and Bowline's.
var nodeNames = []string{"host1", "host2", "host3"}

// staticPath is the directory of static pods inside the host.
const staticPath = "/var/lib/kubelet/manifests"

// stage is a lab with two kubelets and one Bowline.
type stage struct {
	lab      *labtest.Lab
	kubelets [2]*node
	ours     *node
}

func (s *stage) nodes() []*node { return []*node{s.kubelets[0], s.kubelets[1], s.ours} }

// setUp makes the lab for the test; out is the directory of the logs.
func setUp(t *testing.T, out string, remote bool) *stage {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // the cleanups end what would otherwise end with the test
	lab := labtest.StartFor(t, filepath.Join(labtest.Dir(t, "bowline-twin", false), "lab"), 3)
	s := &stage{lab: lab}
	// The cluster's DNS would be on whichever node comes first.
	testutil.Must(t, lab.Client.AppsV1().Deployments("kube-system").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	for i, name := range nodeNames {
		h := lab.Host(name)
		n := &node{name: name, ip: h.IP, namespace: "twin-" + string(rune('a'+i)), manifests: filepath.Join(h.Root, staticPath)}
		testutil.Must(t, os.MkdirAll(n.manifests, 0o755))
		if i < 2 {
			s.kubelets[i] = n
			startKubelet(t, lab, n, filepath.Join(out, "kubelet-"+name+".log"))
			continue
		}
		s.ours = n
		startBowline(t, lab, n, filepath.Join(out, "bowline.log"), remote)
	}
	for _, n := range s.nodes() {
		_, err := lab.NodeReady(ctx, n.name, v1.ConditionTrue, 2*time.Minute)
		testutil.Must(t, err)
		_, err = labtest.Namespace(ctx, lab.Client, n.namespace, time.Minute)
		testutil.Must(t, err)
		testutil.Must(t, warm(ctx, lab, n))
		testutil.Must(t, occupy(ctx, lab, n))
	}
	return s
}

// startKubelet starts the real kubelet, as bowline-lab kubelet does, with static pods in addition.
func startKubelet(t *testing.T, lab *labtest.Lab, n *node, logPath string) {
	t.Helper()
	h := lab.Host(n.name)
	config := testutil.ReadFile(t, filepath.Join(filepath.Dir(h.Root), "kubelet.yaml"))
	path := filepath.Join(lab.Dir, "twin-"+n.name+".yaml")
	testutil.Must(t, os.WriteFile(path, fmt.Appendf(config, "staticPodPath: %s\nfileCheckFrequency: 1s\n", staticPath), 0o644))
	log, err := os.Create(logPath)
	testutil.Must(t, err)
	cmd := lab.Exec(context.Background(), n.name, labtest.Program("bowline-kubelet"), "--config", path, "--kubeconfig", h.NodeKubeconfig,
		"--hostname-override", n.name, "--node-ip", h.IP, "-v=2")
	cmd.Stdout, cmd.Stderr = log, log
	testutil.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL) // what it made goes with the lab
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Error(err)
		}
		testutil.Must(t, log.Close())
	})
}

func startBowline(t *testing.T, lab *labtest.Lab, n *node, logPath string, remote bool) {
	t.Helper()
	if err := os.Remove(logPath); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	b := &labtest.Bowline{Lab: lab, Host: n.name, Args: []string{"-v=2"}, LogPath: logPath,
		Extra: []string{"staticPodPath: " + staticPath, "fileCheckFrequency: 1s"}}
	if remote {
		wire, err := lab.NewWire(n.name)
		testutil.Must(t, err)
		t.Cleanup(func() { wire.Close() })
		b.Wire, b.Apart = wire, &labtest.Apart{}
	}
	testutil.Must(t, b.Start())
	t.Cleanup(func() { testutil.Must(t, b.Stop()) })
}

// warm pulls the images that most scenarios use to a node. Otherwise the first scenario would pull
// them, whichever that is.
func warm(ctx context.Context, lab *labtest.Lab, n *node) error {
	pods := lab.Client.CoreV1().Pods(n.namespace)
	_, err := pods.Create(ctx, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "warm"}, Spec: v1.PodSpec{NodeName: n.name, TerminationGracePeriodSeconds: new(int64(1)),
		Containers: []v1.Container{{Name: "toolbox", Image: toolbox, Command: []string{"sleep", "1000"}}, {Name: "web", Image: web}}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if _, err := lab.PodReady(ctx, n.namespace, "warm", 2*time.Minute); err != nil {
		return err
	}
	if err := pods.Delete(ctx, "warm", metav1.DeleteOptions{}); err != nil {
		return err
	}
	return lab.PodGone(ctx, n.namespace, "warm", time.Minute)
}

// occupy runs a pod beside those of the scenarios that uses some of the node. Otherwise what fits
// would depend on the pods that run at that moment.
func occupy(ctx context.Context, lab *labtest.Lab, n *node) error {
	name := "occupant-" + n.name
	_, err := lab.Client.CoreV1().Pods(metav1.NamespaceSystem).Create(ctx, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{
		NodeName: n.name, TerminationGracePeriodSeconds: new(int64(1)),
		Containers: []v1.Container{{Name: "toolbox", Image: toolbox, Command: []string{"sleep", "100000"},
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("50m")}}}}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = lab.PodReady(ctx, metav1.NamespaceSystem, name, 2*time.Minute)
	return err
}
