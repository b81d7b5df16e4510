package chaos

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubelet/pkg/types"
)

// witness watches one pod from outside Bowline: through the API server, through the runtime, and
// through the lines that the pod's containers write.
type witness struct {
	node   *node
	file   string // that the containers write to
	cancel context.CancelFunc
	ended  sync.WaitGroup
	gone   chan struct{} // closed once the API object is gone

	mu       sync.Mutex
	versions []*v1.Pod // as the API server sent them
	faults   []string  // violations, seen as they happened
	inside   int       // containers that had not left when the API object went
}

// watchPod starts the witness. Call it before the pod is created.
func watchPod(ctx context.Context, n *node, namespace, name, file string) (*witness, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &witness{node: n, file: file, cancel: cancel, gone: make(chan struct{})}
	stream, err := n.lab.Client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		cancel()
		return nil, err
	}
	w.ended.Go(func() { w.followAPI(ctx, stream) })
	w.ended.Go(func() { w.pollRuntime(ctx) })
	return w, nil
}

func (w *witness) stop() {
	w.cancel()
	w.ended.Wait()
}

func (w *witness) fault(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	for _, f := range w.faults {
		if f == text {
			return
		}
	}
	w.faults = append(w.faults, text)
}

func (w *witness) followAPI(ctx context.Context, stream watch.Interface) {
	defer stream.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-stream.ResultChan():
			if !ok {
				w.fault("the watch of the pod ended early")
				return
			}
			p, isPod := e.Object.(*v1.Pod)
			if !isPod {
				w.fault("the watch of the pod said %v", e.Object)
				return
			}
			w.mu.Lock()
			w.versions = append(w.versions, p)
			w.mu.Unlock()
			if e.Type == watch.Deleted {
				w.atEnd(ctx, p)
				close(w.gone)
				return
			}
		}
	}
}

// atEnd checks, when the API object has gone, that nothing of the pod runs or is mounted.
func (w *witness) atEnd(ctx context.Context, p *v1.Pod) {
	if mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", w.node.lab.Host(w.node.name).PID)); err != nil {
		w.fault("%v", err)
	} else if strings.Contains(string(mounts), "/pods/"+string(p.UID)+"/") {
		w.fault("the API object went while a volume was mounted")
	}
	inside := count(w.lines(), "enter") - count(w.lines(), "leave")
	w.mu.Lock()
	w.inside = inside
	w.mu.Unlock()
	running, ready, err := w.runs(ctx, string(p.UID))
	if err != nil {
		w.fault("%v", err)
	}
	if len(running)+len(ready) > 0 {
		w.fault("the API object went while containers %q ran, sandboxes %q were ready", running, ready)
	}
}

// runs lists the names of running containers and the IDs of ready sandboxes.
func (w *witness) runs(ctx context.Context, uid string) (names, sandboxes []string, err error) {
	label := map[string]string{types.KubernetesPodUIDLabel: uid}
	containers, err := w.node.runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{
		LabelSelector: label, State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}})
	if err != nil {
		return nil, nil, err
	}
	for _, c := range containers {
		names = append(names, c.Metadata.GetName())
	}
	list, err := w.node.runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{
		LabelSelector: label, State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}})
	for _, s := range list {
		sandboxes = append(sandboxes, s.Id)
	}
	return names, sandboxes, err
}

// pollRuntime checks for two containers or sandboxes that must not run at once.
func (w *witness) pollRuntime(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.gone:
			return
		case <-tick.C:
		}
		uid := w.uid()
		if uid == "" {
			continue
		}
		names, sandboxes, err := w.runs(ctx, uid)
		if err != nil {
			if ctx.Err() == nil {
				w.fault("%v", err)
			}
			return
		}
		if len(names) > 1 {
			w.fault("at once ran %q", names)
		}
		if len(sandboxes) > 1 {
			w.fault("%d sandboxes were ready at once", len(sandboxes))
		}
	}
}

func (w *witness) uid() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.versions) == 0 {
		return ""
	}
	return string(w.versions[0].UID)
}

// lines returns the lines of the containers, split into words, at least three each.
func (w *witness) lines() [][]string {
	data, err := os.ReadFile(w.file)
	if err != nil {
		return nil
	}
	return parseLines(string(data))
}

func parseLines(text string) [][]string {
	var list [][]string
	for _, line := range strings.Split(text, "\n") {
		if fields := strings.Fields(line); len(fields) > 0 {
			for len(fields) < 3 {
				fields = append(fields, "")
			}
			list = append(list, fields)
		}
	}
	return list
}

// last is the newest version of the pod, or nil.
func (w *witness) last() *v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.versions) == 0 {
		return nil
	}
	return w.versions[len(w.versions)-1]
}

// unleft is the number of containers that had entered and not left when the API object went.
func (w *witness) unleft() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.inside
}

// seen returns all versions and the violations seen so far.
func (w *witness) seen() ([]*v1.Pod, []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*v1.Pod(nil), w.versions...), append([]string(nil), w.faults...)
}
