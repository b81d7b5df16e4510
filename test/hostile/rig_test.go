package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/cri/lying"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/test/fakehosts"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// patience is many times what the awaited step takes.
const patience = 5 * time.Minute

// rig is the cluster, its machines, and the process that manages them.
type rig struct {
	fakes     *fakehosts.Set
	good      []*fakehosts.Machine
	bad       *fakehosts.Machine
	runtime   *gate // of the bad one: its runtime, or the liar
	liar      *lying.Runtime
	sshd      *gate   // of the bad one: its sshd, or the shells that lie
	shells    *shells // the lying sshd
	lies      net.Listener
	bowline   *labtest.Bowline
	health    string
	namespace string
	dir       string
	round     int

	mu    sync.Mutex
	ready map[string]chan struct{} // pod -> closed when it is seen Ready
	made  int
}

func start(t *testing.T, hosts int) *rig {
	t.Helper()
	ctx := t.Context()
	r := &rig{ready: map[string]chan struct{}{}, liar: lying.New(), dir: labtest.Dir(t, "bowline-hostile", true)}
	var err error
	if r.fakes, err = fakehosts.Start(ctx, filepath.Join(r.dir, "lab"), hosts+1); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.fakes.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	r.good, r.bad = r.fakes.Machines[:hosts], r.fakes.Machines[hosts]
	testutil.Must(t, errors.Join(r.prepare(ctx), r.gates(t), weighLittle(r.bad.Cgroup)))
	r.run(t)
	for _, m := range r.fakes.Machines {
		if _, err := r.fakes.Lab.NodeReady(ctx, m.Name, v1.ConditionTrue, patience); err != nil {
			t.Fatalf("%v\n%s", err, r.bowline.LogTail(3000))
		}
	}
	for _, m := range r.fakes.Machines {
		if _, err := r.start(ctx, "resident-"+m.Name, m.Name); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// weighLittle gives a host's control group a tenth of a host's weight. What the shells of the bad
// host compute is that host's own business; elsewhere it would have processors of its own, and here
// it would take those of the good hosts.
func weighLittle(cgroup string) error {
	var errs []error
	for _, file := range []struct{ path, weight string }{
		{filepath.Join("/sys/fs/cgroup/cpu", cgroup, "cpu.shares"), "102"},
		{filepath.Join("/sys/fs/cgroup", cgroup, "cpu.weight"), "10"},
	} {
		err := os.WriteFile(file.path, []byte(file.weight), 0)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// gates puts a gate before the bad machine's runtime, and starts the lying runtime beside it.
func (r *rig) gates(t *testing.T) (err error) {
	honest(r.liar)
	if r.lies, err = net.Listen("unix", filepath.Join(r.dir, "lies.sock")); err != nil {
		return err
	}
	t.Cleanup(r.liar.Serve(r.lies))
	socket := r.bad.Path(r.bad.RuntimeSocket)
	l, err := net.Listen("unix", filepath.Join(filepath.Dir(socket), "gate.sock"))
	if err != nil {
		return err
	}
	r.runtime = newGate(l, r.behaving())
	t.Cleanup(r.runtime.close)
	if r.shells, err = newShells(); err != nil {
		return err
	}
	t.Cleanup(r.shells.close)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	r.sshd = newGate(tcp, to("tcp", r.bad.Wire.Address()))
	t.Cleanup(r.sshd.close)
	return errors.Join(os.Remove(socket), os.Symlink("gate.sock", socket))
}

func to(network, address string) func() (net.Conn, error) {
	return func() (net.Conn, error) { return net.Dial(network, address) }
}

func (r *rig) behaving() func() (net.Conn, error) {
	return func() (net.Conn, error) { return r.bad.Runtime.Dial(context.Background()) }
}

func (r *rig) lying() func() (net.Conn, error) { return to("unix", r.lies.Addr().String()) }

// configure writes the configuration. Each time the bad host gets another label, so that its driver
// starts at once, quarantined or not.
func (r *rig) configure() (string, error) {
	r.round++
	text := r.fakes.Lab.ConfigHead()
	for _, m := range r.fakes.Machines {
		address := m.Wire.Address()
		if m == r.bad {
			address = r.sshd.Addr().String()
		}
		lines, err := r.fakes.Lab.SSHLines(m.Name, address)
		if err != nil {
			return "", err
		}
		if m == r.bad {
			// The lying sshd has its own key, which is pinned as well.
			last := len(lines) - 1
			lines[last] = strings.TrimSuffix(lines[last], "]") + fmt.Sprintf(", %q]", r.shells.key)
			lines = append(lines, fmt.Sprintf(`labels: {round: "%d"}`, r.round))
		}
		text += r.fakes.Lab.ConfigHost(m.Name, lines...)
	}
	path := filepath.Join(r.dir, "bowline.yaml")
	return path, errors.Join(os.WriteFile(path+".next", []byte(text), 0o600), os.Rename(path+".next", path))
}

func (r *rig) run(t *testing.T) {
	t.Helper()
	config, err := r.configure()
	testutil.Must(t, err)
	r.health, err = labtest.FreeAddress()
	testutil.Must(t, err)
	first := r.good[0]
	r.bowline = &labtest.Bowline{Lab: r.fakes.Lab, Host: first.Name, Wire: first.Wire, Config: config,
		LogPath: filepath.Join(r.dir, "bowline.log"), Args: []string{"--health-address=" + r.health}}
	testutil.Must(t, r.bowline.Start())
	t.Cleanup(func() {
		if err := r.bowline.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// prepare removes the cluster's own pods, which fake machines cannot run, makes a namespace, and
// watches it.
func (r *rig) prepare(ctx context.Context) error {
	lab := r.fakes.Lab
	err := lab.Empty(ctx)
	if err == nil {
		r.namespace, err = labtest.Namespace(ctx, lab.Client, "hostile-", patience)
	}
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(lab.Client, 0, informers.WithNamespace(r.namespace))
	see := func(o any) {
		if p, ok := o.(*v1.Pod); ok && labtest.IsReady(p) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if c := r.ready[p.Name]; c != nil {
				delete(r.ready, p.Name)
				close(c)
			}
		}
	}
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, o any) { see(o) }}); err != nil {
		return err
	}
	factory.StartWithContext(ctx)
	factory.WaitForCacheSyncWithContext(ctx)
	return nil
}

// start makes a pod, and returns how long it took to be Ready.
func (r *rig) start(ctx context.Context, name, node string) (time.Duration, error) {
	seen := make(chan struct{})
	r.mu.Lock()
	r.ready[name] = seen
	r.mu.Unlock()
	began, grace := time.Now(), int64(1)
	container, _, _ := strings.Cut(name, "-")
	_, err := r.fakes.Lab.Client.CoreV1().Pods(r.namespace).Create(ctx, &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: &grace,
			Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists}},
			Containers: []v1.Container{{
				Name: container, Image: "registry.lab/" + fake.TestImage + ":hostile", ImagePullPolicy: v1.PullIfNotPresent,
				Command: []string{"/" + fake.TestImage, "wait"},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return 0, err
	}
	select {
	case <-seen:
		return time.Since(began), nil
	case <-time.After(patience):
		return 0, fmt.Errorf("pod %s on %s is not Ready within %s: %s", name, node, patience, r.bowline.LogTail(2000))
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// churn starts and deletes pods on the good hosts until enough returns true. It returns how long
// each start took, sorted.
func (r *rig) churn(ctx context.Context, enough func(n int) bool) (took []time.Duration, err error) {
	for !enough(len(took)) {
		r.made++
		name := "timed-" + strconv.Itoa(r.made)
		one, err := r.start(ctx, name, r.good[r.made%len(r.good)].Name)
		if err == nil {
			err = r.fakes.Lab.Client.CoreV1().Pods(r.namespace).Delete(ctx, name, metav1.DeleteOptions{})
		}
		if err != nil {
			return nil, err
		}
		took = append(took, one)
	}
	slices.Sort(took)
	return took, nil
}

// peak is the process's maximum resident memory since forget.
func (r *rig) peak() (int64, error) { return labtest.Memory(r.bowline.PID(), "VmHWM") }

func (r *rig) forget() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", r.bowline.PID()), []byte("5"), 0)
}

// stamp is the owner's stamp on the bad machine's pods: root there can read it.
func (r *rig) stamp(ctx context.Context) (string, error) {
	c, err := cri.Connect(ctx, cri.Config{Dial: r.bad.Runtime.Dial})
	if err != nil {
		return "", err
	}
	defer c.Close()
	all, err := c.ListPodSandbox(ctx, nil)
	if err != nil {
		return "", err
	}
	for _, s := range all {
		if stamp := s.Labels[pod.LabelOwner]; stamp != "" {
			return stamp, nil
		}
	}
	return "", errors.New("no sandbox has a stamp")
}

// metrics returns the lines of the process's metrics that have this name.
func (r *rig) metrics(name string) (lines []string, err error) {
	answer, err := http.Get("http://" + r.health + "/metrics")
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	for _, line := range strings.Split(string(data), "\n") {
		if strings.HasPrefix(line, name+"{") {
			lines = append(lines, line)
		}
	}
	return lines, err
}
