package links

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/fakehosts"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// patience is many times what the awaited step takes, because the machine may be busy.
const patience = 5 * time.Minute

// arena is the cluster, its machines and the process that manages them.
type arena struct {
	fakes     *fakehosts.Set
	namespace string
	seed      uint64
	nodes     []*node
	bowline   *labtest.Bowline

	mu   sync.Mutex
	hits map[string]int // op and class -> faults that struck in flight
}

// node is one machine and what the test asked of its pods.
type node struct {
	*fakehosts.Machine
	arena *arena

	mu      sync.Mutex
	deleted map[string]time.Time // pod, by its name in the runtime's log -> when its deletion was requested
	early   []string             // API objects that went before their containers
}

func TestLinks(t *testing.T) {
	if os.Getenv("BOWLINE_E2E") != "1" {
		t.Skip("needs root and the lab: BOWLINE_E2E=1 runs it")
	}
	hosts, rounds := 6, 1
	if os.Getenv("BOWLINE_LINKS") == "full" {
		hosts, rounds = 20, 20
	}
	hosts, rounds = int(labtest.Number(t, "BOWLINE_LINKS_HOSTS", uint64(hosts), 1)), int(labtest.Number(t, "BOWLINE_LINKS_ROUNDS", uint64(rounds), 1))
	a := &arena{seed: labtest.Seed(t, "BOWLINE_LINKS_SEED"), hits: map[string]int{}}
	a.bringUp(t, hosts, nil)
	began := time.Now()
	cases := makeCases(rounds, a.seed)
	a.storm(t, cases)
	a.settled(t)
	forth, back := int64(0), int64(0)
	for _, n := range a.nodes {
		f, b := n.Wire.Carried()
		forth, back = forth+f, back+b
	}
	t.Logf("%d faults on %d links in %s, %d KiB there and %d KiB back", len(cases), hosts, time.Since(began).Round(time.Second), forth>>10, back>>10)
	for _, op := range ops {
		for _, class := range labtest.LinkFaults {
			if n := a.hits[op.name+", "+class.Name]; n != rounds {
				t.Errorf("%s, %s: struck in flight %d times, want %d", op.name, class.Name, n, rounds)
			}
		}
	}
}

// bringUp makes the machines, the process, and a resident pod on each.
func (a *arena) bringUp(t *testing.T, hosts int, clocks []time.Duration) {
	t.Helper()
	ctx := t.Context()
	dir := labtest.Dir(t, "bowline-links", true)
	var err error
	if a.fakes, err = fakehosts.Start(ctx, filepath.Join(dir, "lab"), hosts, clocks...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.fakes.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for _, m := range a.fakes.Machines {
		a.nodes = append(a.nodes, &node{Machine: m, arena: a, deleted: map[string]time.Time{}})
	}
	a.prepare(t)
	config, err := a.fakes.WriteConfig()
	testutil.Must(t, err)
	a.bowline = &labtest.Bowline{Lab: a.fakes.Lab, Host: a.nodes[0].Name, Wire: a.nodes[0].Wire, Config: config,
		LogPath: filepath.Join(dir, "bowline.log"), Args: []string{"-v=2"}}
	end, err := a.bowline.Keep(func(code int) {
		t.Errorf("bowline has ended with %d: %s", code, a.bowline.LogTail(3000))
	})
	testutil.Must(t, err)
	t.Cleanup(func() { end(t.Failed()) })
	a.each(t, func(n *node) error {
		if _, err := a.fakes.Lab.NodeReady(ctx, n.Name, v1.ConditionTrue, 2*patience); err != nil {
			return err
		}
		if err := n.create(ctx, residentOf(n), false); err != nil {
			return err
		}
		_, err := a.fakes.Lab.PodReady(ctx, a.namespace, residentOf(n), patience)
		return err
	})
}

// each runs do for every node at once, and ends the test if one fails.
func (a *arena) each(t *testing.T, do func(n *node) error) {
	t.Helper()
	var all sync.WaitGroup
	for _, n := range a.nodes {
		all.Go(func() {
			if err := do(n); err != nil {
				t.Errorf("%s: %v", n.Name, err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.Fatalf("bowline: %s", a.bowline.LogTail(3000))
	}
}

// prepare makes the objects that the pods need, and removes the cluster's own pods, which fake
// machines cannot run.
func (a *arena) prepare(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	lab := a.fakes.Lab
	testutil.Must(t, lab.Empty(ctx))
	var err error
	a.namespace, err = labtest.Namespace(ctx, lab.Client, "links-", patience)
	testutil.Must(t, err)
	if _, err := lab.Client.CoreV1().ConfigMaps(a.namespace).Create(ctx, &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "big"}, BinaryData: map[string][]byte{"data": big()}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	byName := map[string]*node{}
	for _, n := range a.nodes {
		byName[n.Name] = n
	}
	factory := informers.NewSharedInformerFactoryWithOptions(lab.Client, 0, informers.WithNamespace(a.namespace))
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(o any) {
		if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = last.Obj
		}
		if p, ok := o.(*v1.Pod); ok {
			byName[p.Spec.NodeName].gone(p)
		}
	}}); err != nil {
		t.Fatal(err)
	}
	factory.StartWithContext(ctx)
	factory.WaitForCacheSyncWithContext(ctx)
}

// storm runs the cases, one at a time on each machine.
func (a *arena) storm(t *testing.T, cases []testCase) {
	t.Helper()
	queue := make(chan testCase)
	go func() {
		defer close(queue)
		for _, c := range cases {
			queue <- c
		}
	}()
	var all sync.WaitGroup
	for _, n := range a.nodes {
		all.Go(func() {
			for c := range queue {
				began := time.Now()
				bad := n.run(t.Context(), c)
				if len(bad) > 0 {
					t.Errorf("%s on %s, %s to %s:\n\t%s", c, n.Name, began.Format("15:04:05.000"), time.Now().Format("15:04:05.000"), strings.Join(bad, "\n\t"))
				} else if testing.Verbose() {
					t.Logf("%s on %s: %s", c, n.Name, time.Since(began).Round(time.Millisecond))
				}
			}
		})
	}
	all.Wait()
}

// settled checks that in the end every remaining pod is Ready without a restart, and that the
// machines hold nothing else.
func (a *arena) settled(t *testing.T) {
	t.Helper()
	a.each(t, func(n *node) error {
		p, err := a.fakes.Lab.PodReady(t.Context(), a.namespace, residentOf(n), patience)
		if err != nil {
			return err
		}
		if r := labtest.Restarts(p); r != 0 {
			return fmt.Errorf("the resident is reported to have %d restarts", r)
		}
		return labtest.Until(t.Context(), patience, "nothing but the resident runs on "+n.Name, func(ctx context.Context) error {
			if err := n.unharmed(ctx); err != nil {
				return err
			}
			all := instances(n.Runtime.Log())
			for i := range all {
				pod := all[i].Pod
				containers, sandboxes := running(all, pod)
				if want := strings.Contains(pod, "/"+residentOf(n)+" "); want != (containers > 0) || want != (sandboxes > 0) {
					return fmt.Errorf("of %s run %d containers in %d sandboxes", pod, containers, sandboxes)
				}
			}
			return nil
		})
	})
}

// big is the content of a volume that takes many packets, the same each time.
func big() []byte {
	data := make([]byte, 600<<10)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(data)
	return data
}
