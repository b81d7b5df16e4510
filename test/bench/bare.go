package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/syncloop/startlimiter"
)

// bareCommand makes this program the driver of the bare CRI, inside the host.
const bareCommand = "_bare"

// bareJob is the driver's input at its start.
type bareJob struct {
	Kubeconfig  string
	HostIP, DNS string
	Domain      string
	Concurrency int
	PatchesUp   int
	EventsUp    int
	PatchesDown int
	EventsDown  int
	Tokens      int
	Tape        string // file
}

// order is one line of the driver's standard input.
type order struct {
	Create *v1.Pod `json:",omitempty"`
	Delete string  `json:",omitempty"` // a pod's name
}

// pullImages pulls the images of the waves.
func pullImages(ctx context.Context, socket string) error {
	client, err := dialRuntime(ctx, socket)
	if err != nil {
		return err
	}
	defer client.Close()
	for _, name := range []string{pauseImage, webImage} {
		if _, err := client.PullImage(ctx, &runtimeapi.ImageSpec{Image: name}, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

func dialRuntime(ctx context.Context, socket string) (*cri.Client, error) {
	return cri.Connect(ctx, cri.Config{Endpoint: socket, Dial: func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}})
}

// bareAt measures the bare CRI with a concurrency of up for starts and of down for stops.
func (b *bench) bareAt(ctx context.Context, up, down int) (r result, err error) {
	client, err := b.fresh(ctx)
	if err != nil {
		return r, err
	}
	containerd, err := b.lab.pid(ctx, "containerd")
	if err != nil {
		return r, err
	}
	h := b.lab.host()
	job := bareJob{
		Kubeconfig: h.NodeKubeconfig, HostIP: h.IP, DNS: b.lab.Status.Cluster.DNSIP, Domain: b.lab.Status.Cluster.Domain,
		Concurrency: up, Tokens: b.wroteUp.tokens, Tape: filepath.Join(b.lab.Dir, "bench-tape.json"),
		PatchesUp: b.wroteUp.patches, EventsUp: b.wroteUp.events,
		PatchesDown: b.wroteDown.patches, EventsDown: b.wroteDown.events,
	}
	text, err := json.Marshal(b.tape)
	if err != nil {
		return r, err
	}
	if err := os.WriteFile(job.Tape, text, 0o600); err != nil {
		return r, err
	}
	// Without a Node object, the pod garbage collector would delete its pods.
	if _, err := client.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.Name}}, metav1.CreateOptions{}); err != nil {
		return r, err
	}
	driver, err := b.startDriver(ctx, job)
	if err != nil {
		return r, err
	}
	waitForIdle(ctx)
	work := meter{agent: driver.pid, runtime: containerd}
	if err := work.start(); err != nil {
		return r, err
	}
	w := wave{client: client, n: b.pods}
	w.created = func(p *v1.Pod) { _ = driver.tell(order{Create: p}) } // if the driver has died, the wave fails
	w.deleted = func(name string) error { return driver.tell(order{Delete: name}) }
	if r.up, err = w.up(ctx); err != nil {
		return r, errors.Join(err, driver.stop())
	}
	if err := driver.tell(order{Delete: "*" + strconv.Itoa(down)}); err != nil {
		return r, err
	}
	waitForIdle(ctx)
	if r.down, err = w.down(ctx); err != nil {
		return r, errors.Join(err, driver.stop())
	}
	used, err := work.stop()
	r.agentWork, r.runtimeWork = used.agent, used.runtime
	return r, errors.Join(err, driver.stop())
}

// driver is the parent's handle of the bare CRI's driver.
type driver struct {
	pid  int
	stop func() error

	mu sync.Mutex
	in io.WriteCloser
}

func (d *driver) tell(o order) error {
	line, err := json.Marshal(o)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err = d.in.Write(append(line, '\n'))
	return err
}

func (b *bench) startDriver(ctx context.Context, job bareJob) (*driver, error) {
	text, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	cmd := b.lab.Exec(ctx, theHost, b.self, bareCommand, string(text))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &driver{pid: cmd.Process.Pid, in: in, stop: func() error {
		return errors.Join(in.Close(), cmd.Wait())
	}}, nil
}

// runBare is the driver: it executes each order at once, within its concurrency.
func runBare(ctx context.Context, args []string) error {
	var job bareJob
	if len(args) != 2 {
		return errors.New("the driver takes one argument")
	}
	if err := json.Unmarshal([]byte(args[1]), &job); err != nil {
		return err
	}
	f, err := newFloor(ctx, job)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	slots := f.starts
	made := map[string]*floorPod{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return err
		}
		var p *floorPod
		var do func(context.Context, *floorPod) error
		switch {
		case o.Create != nil:
			p, do = &floorPod{pod: o.Create}, f.up
			made[o.Create.Name] = p
		case o.Delete != "" && o.Delete[0] == '*': // between the waves: another concurrency
			n, err := strconv.Atoi(o.Delete[1:])
			if err != nil {
				return err
			}
			all.Wait()
			slots = startlimiter.New(n, time.Minute)
			continue
		default:
			if p, do = made[o.Delete], f.down; p == nil {
				return fmt.Errorf("pod %s was never made", o.Delete)
			}
		}
		slots := slots
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, waveLimit)
			defer cancel()
			done, err := slots.Take(ctx, false)
			if err == nil {
				err = do(ctx, p)
				done()
			}
			if err != nil {
				fmt.Fprintf(os.Stderr, "bench: bare CRI: pod %s: %v\n", path.Join(p.pod.Namespace, p.pod.Name), err)
			}
		})
	}
	all.Wait()
	f.late.Wait()
	return lines.Err()
}
