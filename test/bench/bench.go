package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"
)

// The systems under test.
const (
	sysBowline = "bowline"
	sysKubelet = "kubelet"
	sysBare    = "bare"
)

// concurrencies that the bare CRI is tried with in the first repetition.
var concurrencies = []int{2, 4, 8, 16}

// result is one repetition of one system. Idle shares are of one core.
type result struct {
	up, down           time.Duration
	agentWork, crdWork time.Duration // CPU time of agent and containerd, up and down together
	memory             int64         // peak of the agent, bytes
	idle, idleProbed   idle
}

// idle is what two processes use while nothing changes, as a share of one core.
type idle struct{ agent, containerd float64 }

type bench struct {
	options
	lab     *lab
	results map[string][]result
	self    string // this program
	// what Bowline asked of the runtime, and how often it wrote to the API server
	// for one pod, up and down; the bare CRI does the same
	tape               tape
	wroteUp, wroteDown writes
	bestUp, bestDown   int // concurrency of the bare CRI
}

func (b *bench) wants(system string) bool { return b.only == "" || b.only == system }

// repetition measures each system once, each on a fresh host.
func (b *bench) repetition(ctx context.Context, i int) error {
	for _, system := range []string{sysBowline, sysKubelet, sysBare} {
		if !b.wants(system) {
			continue
		}
		var r result
		var err error
		if system == sysBare {
			r, err = b.bare(ctx)
		} else {
			r, err = b.agent(ctx, system)
		}
		if err != nil {
			return fmt.Errorf("%s, repetition %d: %w", system, i+1, err)
		}
		b.results[system] = append(b.results[system], r)
		fmt.Fprintf(os.Stderr, "%d/%d %-8s ready %6.2f s  gone %6.2f s  memory %s  agent %.2f s  containerd %.2f s  idle %s/%s  probed %s/%s  load %s\n",
			i+1, b.runs, system, r.up.Seconds(), r.down.Seconds(), mib(r.memory), r.agentWork.Seconds(), r.crdWork.Seconds(),
			percent(r.idle.agent), percent(r.idle.containerd), percent(r.idleProbed.agent), percent(r.idleProbed.containerd), load())
	}
	return nil
}

// fresh gives a host without a trace of the system before, the images pulled.
func (b *bench) fresh(ctx context.Context) (kubernetes.Interface, error) {
	// A machine that is busy with something else may make the host late.
	_, err := b.lab.do(ctx, "reset", theHost)
	for range 3 {
		if err == nil {
			break
		}
		_, err = b.lab.do(ctx, "reset", theHost)
	}
	if err != nil {
		return nil, err
	}
	if err := b.lab.read(ctx); err != nil {
		return nil, err
	}
	client, err := newClient(b.lab.Cluster.AdminKubeconfig)
	if err != nil {
		return nil, err
	}
	if err := makeNamespace(ctx, client); err != nil {
		return nil, err
	}
	return client, pullImages(ctx, b.lab.Hosts[0].OutsideSocket)
}

// agent measures Bowline or the kubelet.
func (b *bench) agent(ctx context.Context, system string) (r result, err error) {
	client, err := b.fresh(ctx)
	if err != nil {
		return r, err
	}
	start := b.startKubelet
	if system == sysBowline {
		start = func(ctx context.Context) (int, func() error, error) { return b.startBowline(ctx, containerdSocket) }
	}
	pid, stop, err := start(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := nodeReady(ctx, client); err != nil {
		return r, err
	}
	containerd, err := b.lab.pid(ctx, "containerd")
	if err != nil {
		return r, err
	}
	settle(ctx)
	work := meter{agent: pid, containerd: containerd}
	w := wave{client: client, n: b.pods}
	if err := work.start(); err != nil {
		return r, err
	}
	if r.up, err = w.up(ctx); err != nil {
		return r, err
	}
	busy, err := work.stop()
	if err != nil {
		return r, err
	}
	settle(ctx)
	if b.idle > 0 {
		if r.idle, err = work.idle(ctx, b.idle); err != nil {
			return r, err
		}
	}
	if err := work.start(); err != nil {
		return r, err
	}
	if r.down, err = w.down(ctx); err != nil {
		return r, err
	}
	busyDown, err := work.stop()
	if err != nil {
		return r, err
	}
	r.agentWork, r.crdWork = busy.agent+busyDown.agent, busy.containerd+busyDown.containerd
	settle(ctx)
	if b.idle > 0 {
		probed := wave{client: client, n: b.pods, probed: true}
		if _, err := probed.up(ctx); err != nil {
			return r, err
		}
		settle(ctx)
		if r.idleProbed, err = work.idle(ctx, b.idle); err != nil {
			return r, err
		}
		if _, err := probed.down(ctx); err != nil {
			return r, err
		}
	}
	r.memory, err = peakMemory(pid)
	return r, err
}

// settleTime lets what trails behind a wave, events mostly, come to its end.
const settleTime = 5 * time.Second

func settle(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(settleTime):
	}
}

// meter reads the CPU time of an agent and of containerd.
type meter struct {
	agent, containerd int // pids
	from              busy
}

type busy struct{ agent, containerd time.Duration }

func (m *meter) read() (b busy, err error) {
	if b.agent, err = cpuTime(m.agent); err != nil {
		return b, err
	}
	b.containerd, err = cpuTime(m.containerd)
	return b, err
}

func (m *meter) start() (err error) {
	m.from, err = m.read()
	return err
}

func (m *meter) stop() (busy, error) {
	now, err := m.read()
	return busy{now.agent - m.from.agent, now.containerd - m.from.containerd}, err
}

// idle waits for d and tells what was used meanwhile.
func (m *meter) idle(ctx context.Context, d time.Duration) (idle, error) {
	if err := m.start(); err != nil {
		return idle{}, err
	}
	began := time.Now()
	select {
	case <-ctx.Done():
		return idle{}, ctx.Err()
	case <-time.After(d):
	}
	used, err := m.stop()
	over := time.Since(began).Seconds()
	return idle{agent: used.agent.Seconds() / over, containerd: used.containerd.Seconds() / over}, err
}

// bare measures the CRI alone: at every concurrency the first time, then at
// the best ones.
func (b *bench) bare(ctx context.Context) (best result, err error) {
	if b.bestUp > 0 {
		return b.bareAt(ctx, b.bestUp, b.bestDown)
	}
	for _, n := range concurrencies {
		r, err := b.bareAt(ctx, n, n)
		if err != nil {
			return r, fmt.Errorf("%d at a time: %w", n, err)
		}
		fmt.Fprintf(os.Stderr, "    bare CRI, %2d at a time: ready %6.2f s  gone %6.2f s\n", n, r.up.Seconds(), r.down.Seconds())
		if b.bestUp == 0 || r.up < best.up {
			best.up, b.bestUp = r.up, n
		}
		if b.bestDown == 0 || r.down < best.down {
			best.down, b.bestDown = r.down, n
			best.agentWork, best.crdWork = r.agentWork, r.crdWork
		}
	}
	return best, nil
}

// startBowline starts the program under test inside the host; socket is the
// runtime's.
func (b *bench) startBowline(ctx context.Context, socket string) (pid int, stop func() error, err error) {
	h := b.lab.Hosts[0]
	config := fmt.Sprintf(`apiVersion: bowline.io/v1alpha1
kind: BowlineConfiguration
clusterDNS: [%s]
clusterDomain: %s
hosts:
- nodeName: %s
  endpoint: unix://%s
  kubeconfig: %s
  nodeIP: %s
  server:
    tlsCertFile: %s
    tlsPrivateKeyFile: %s
  authentication:
    x509: {clientCAFile: %s}
`, b.lab.Cluster.DNSIP, b.lab.Cluster.Domain, h.Name, socket, h.NodeKubeconfig, h.IP, h.Serving.Cert, h.Serving.Key, b.lab.Cluster.ClientCA)
	file := filepath.Join(b.lab.dir, "bench-bowline.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return 0, nil, err
	}
	log, err := os.Create(filepath.Join(b.lab.dir, "bench-bowline.log"))
	if err != nil {
		return 0, nil, err
	}
	cmd := b.lab.inHost(ctx, b.bowline, "run", "--config", file)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return 0, nil, errors.Join(err, log.Close())
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }() // it is ended by a signal; how, does not matter here
	return cmd.Process.Pid, func() error {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		return log.Close()
	}, nil
}

// startKubelet starts the kubelet of the lab's Kubernetes: maxPods 110,
// kubeAPIQPS 50 and burst 100 as Bowline has, parallel pulls.
func (b *bench) startKubelet(ctx context.Context) (pid int, stop func() error, err error) {
	if _, err := b.lab.do(ctx, "kubelet", theHost); err != nil {
		return 0, nil, err
	}
	stop = func() error {
		_, err := b.lab.do(context.WithoutCancel(ctx), "kubelet", theHost, "--stop")
		return err
	}
	if pid, err = b.lab.pid(ctx, "kubelet"); err != nil {
		return 0, nil, errors.Join(err, stop())
	}
	return pid, stop, nil
}
