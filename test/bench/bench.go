package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// The systems under test. Bowline manages the host through its local socket, or over SSH with this
// many milliseconds of delay in each direction.
const (
	sysBowline = "bowline"
	sysKubelet = "kubelet"
	sysBare    = "bare"
	sysSSH     = "ssh"
	sysSSH10   = "ssh10"
	sysSSH50   = "ssh50"
)

// remoteDelay is the delay of each system that manages the host over SSH.
var remoteDelay = map[string]time.Duration{sysSSH: 0, sysSSH10: 10 * time.Millisecond, sysSSH50: 50 * time.Millisecond}

// concurrencies are the ones that the first repetition tries with the bare CRI.
var concurrencies = []int{2, 4, 8, 16}

// result is one repetition of one system. Idle shares are of one core.
type result struct {
	up, down               time.Duration
	agentWork, runtimeWork time.Duration // CPU time of agent and runtime, up and down together
	memory                 int64         // peak of the agent, bytes
	idle, idleProbed       idle
	one                    time.Duration // time to Ready of a pod with a token, a configMap and two containers
	link                   linkCost
}

// idle is the CPU use of two processes while nothing changes, as a share of one core.
type idle struct{ agent, runtime float64 }

type bench struct {
	options
	lab     *lab
	results map[string][]result // by system
	earlier map[string][]result // of the base
	self    string              // this program
	// baseVersion is how the base names itself.
	baseVersion string
	// Bowline's requests to the runtime, and how often it wrote to the API server for one pod, up
	// and down; the bare CRI does the same.
	tape               tape
	wroteUp, wroteDown writes
	bestUp, bestDown   int // concurrency of the bare CRI
}

func (b *bench) wants(system string) bool {
	if system == sysBare && b.runtime != runtimeContainerd {
		return false
	}
	_, remote := remoteDelay[system]
	return b.only == "" || b.only == system || b.only == onlyRemote && (remote || system == sysBowline)
}

// repetition measures each system once, each on a fresh host.
func (b *bench) repetition(ctx context.Context, i int) error {
	// Systems that are compared with each other run one after the other.
	for _, system := range []string{sysSSH50, sysSSH10, sysSSH, sysBowline, sysKubelet, sysBare} {
		if !b.wants(system) {
			continue
		}
		for _, program := range b.programs(system, i) {
			var r result
			var err error
			if system == sysBare {
				r, err = b.bare(ctx)
			} else {
				r, err = b.agent(ctx, system, program)
			}
			if err != nil {
				return fmt.Errorf("%s, repetition %d: %w", system, i+1, err)
			}
			results, name := b.results, system
			if program != b.bowline {
				results, name = b.earlier, system+", base"
			}
			results[system] = append(results[system], r)
			fmt.Fprintf(os.Stderr, "%d/%d %-13s ready %6.2f s  gone %6.2f s  memory %s  agent %.2f s  runtime %.2f s  idle %s/%s  probed %s/%s  load %s\n",
				i+1, b.runs, name, r.up.Seconds(), r.down.Seconds(), mib(r.memory), r.agentWork.Seconds(), r.runtimeWork.Seconds(),
				percent(r.idle.agent), percent(r.idle.runtime), percent(r.idleProbed.agent), percent(r.idleProbed.runtime), labtest.Load())
		}
	}
	return nil
}

// programs returns the builds of Bowline to measure as one system in repetition i. Which of the two
// is first changes each time, because the machine may be slower or faster later on.
func (b *bench) programs(system string, i int) []string {
	_, remote := remoteDelay[system]
	switch {
	case b.base == "" || !remote && system != sysBowline:
		return []string{b.bowline}
	case i%2 == 0:
		return []string{b.base, b.bowline}
	}
	return []string{b.bowline, b.base}
}

// fresh resets the host, so that no trace of the previous system is left, and pulls the images.
func (b *bench) fresh(ctx context.Context) (kubernetes.Interface, error) {
	// On a busy machine the host may come up too late.
	err := b.lab.do(ctx, "reset", theHost)
	for range 3 {
		if err == nil {
			break
		}
		err = b.lab.do(ctx, "reset", theHost)
	}
	if err != nil {
		return nil, err
	}
	if err := b.lab.Refresh(ctx); err != nil {
		return nil, err
	}
	client, err := newClient(b.lab.Status.Cluster.AdminKubeconfig)
	if err != nil {
		return nil, err
	}
	if _, err := labtest.Namespace(ctx, client, namespace, waveLimit); err != nil {
		return nil, err
	}
	return client, pullImages(ctx, b.lab.host().OutsideSocket)
}

// running is an agent that manages a fresh host.
type running struct {
	client kubernetes.Interface
	wire   *labtest.Wire // to a remote host, else nil
	pid    int
	stop   func() error
	// counts is the process's URL of /metrics; empty: the node serves it.
	counts string
}

// begin starts an agent on a fresh host; program is the build of Bowline.
func (b *bench) begin(ctx context.Context, system, program string) (r running, err error) {
	if r.client, err = b.fresh(ctx); err != nil {
		return r, err
	}
	start := b.startKubelet
	delay, remote := remoteDelay[system]
	if remote {
		if r.wire, err = labtest.NewWire(b.lab.host().SSH.Address); err != nil {
			return r, err
		}
		r.wire.Delay(delay)
		start = func(ctx context.Context) (int, func() error, error) { return b.startRemote(ctx, program, r.wire) }
	} else if system == sysBowline {
		start = func(ctx context.Context) (int, func() error, error) {
			return b.startBowline(ctx, program, b.lab.host().RuntimeSocket)
		}
		r.counts = "http://" + b.lab.host().IP + healthPort + "/metrics"
	}
	pid, stop, err := start(ctx)
	if err != nil {
		if remote {
			r.wire.Close()
		}
		return r, err
	}
	r.pid, r.stop = pid, func() error {
		err := stop()
		if remote {
			r.wire.Close()
		}
		return err
	}
	return r, nil
}

// agent measures Bowline or the kubelet.
func (b *bench) agent(ctx context.Context, system, program string) (r result, err error) {
	delay, remote := remoteDelay[system]
	begun, err := b.begin(ctx, system, program)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, begun.stop()) }()
	client, wire, pid := begun.client, begun.wire, begun.pid
	if err := nodeReady(ctx, client); err != nil {
		return r, err
	}
	runtime, err := b.lab.pid(ctx, b.lab.runtime)
	if err != nil {
		return r, err
	}
	waitForIdle(ctx)
	if system != sysKubelet {
		if r.one, err = b.onePod(ctx, client); err != nil {
			return r, err
		}
		waitForIdle(ctx)
	}
	work := meter{agent: pid, runtime: runtime}
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
	waitForIdle(ctx)
	if b.idle > 0 && delay == 0 {
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
	r.agentWork, r.runtimeWork = busy.agent+busyDown.agent, busy.runtime+busyDown.runtime
	waitForIdle(ctx)
	if remote {
		if b.idle > 0 && delay == 0 && program == b.bowline && len(b.results[system]) == 0 { // takes minutes and varies little
			if r.link, err = b.linkCost(ctx, client, wire); err != nil {
				return r, err
			}
		}
	} else if b.idle > 0 {
		probed := wave{client: client, n: b.pods, probed: true}
		if _, err := probed.up(ctx); err != nil {
			return r, err
		}
		waitForIdle(ctx)
		if r.idleProbed, err = work.idle(ctx, b.idle); err != nil {
			return r, err
		}
		if _, err := probed.down(ctx); err != nil {
			return r, err
		}
	}
	r.memory, err = labtest.Memory(pid, "VmHWM")
	return r, err
}

// settleTime lets the work that trails a wave finish, mostly events.
const settleTime = 5 * time.Second

func waitForIdle(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(settleTime):
	}
}

// meter reads the CPU time of an agent and of the runtime.
type meter struct {
	agent, runtime int // pids
	from           busy
}

type busy struct{ agent, runtime time.Duration }

func (m *meter) read() (b busy, err error) {
	if b.agent, err = labtest.CPUTime(m.agent); err != nil {
		return b, err
	}
	b.runtime, err = labtest.CPUTime(m.runtime)
	return b, err
}

func (m *meter) start() (err error) {
	m.from, err = m.read()
	return err
}

func (m *meter) stop() (busy, error) {
	now, err := m.read()
	return busy{now.agent - m.from.agent, now.runtime - m.from.runtime}, err
}

// idle waits for d and returns the CPU use in that time.
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
	return idle{agent: used.agent.Seconds() / over, runtime: used.runtime.Seconds() / over}, err
}

// bare measures the CRI alone: with every concurrency the first time, then with the best ones.
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
			best.agentWork, best.runtimeWork = r.agentWork, r.runtimeWork
		}
	}
	return best, nil
}

// healthPort is the port of Bowline's process in the host.
const healthPort = ":18080"

// startBowline starts a build of Bowline inside the host; socket is the runtime's.
func (b *bench) startBowline(ctx context.Context, program, socket string) (pid int, stop func() error, err error) {
	h := b.lab.host()
	file, err := b.config("endpoint: unix://" + socket + "\n  nodeIP: " + h.IP)
	if err != nil {
		return 0, nil, err
	}
	return b.launch(b.lab.Exec(ctx, theHost, program, "run", "--config", file, "--health-address", h.IP+healthPort))
}

// config writes a BowlineConfiguration for the host. endpoint holds the lines that say how to reach
// it.
func (b *bench) config(endpoint string) (file string, err error) {
	h := b.lab.host()
	text := fmt.Sprintf(`apiVersion: bowline.io/v1alpha1
kind: BowlineConfiguration
clusterDNS: [%s]
clusterDomain: %s
%s
hosts:
- nodeName: %s
  %s
  kubeconfig: %s
  server:
    tlsCertFile: %s
    tlsPrivateKeyFile: %s
  authentication:
    x509: {clientCAFile: %s}
`, b.lab.Status.Cluster.DNSIP, b.lab.Status.Cluster.Domain, strings.Join(labtest.AnyDisk, "\n"), h.Name, endpoint, h.NodeKubeconfig, h.Serving.Cert, h.Serving.Key, b.lab.Status.Cluster.ClientCA)
	file = filepath.Join(b.lab.Dir, "bench-bowline.yaml")
	return file, os.WriteFile(file, []byte(text), 0o600)
}

// launch starts a command line of Bowline.
func (b *bench) launch(cmd *exec.Cmd) (pid int, stop func() error, err error) {
	log := filepath.Join(b.lab.Dir, "bench-bowline.log")
	if err := os.RemoveAll(log); err != nil {
		return 0, nil, err
	}
	process, err := labtest.StartProcess("bowline", cmd, log)
	if err != nil {
		return 0, nil, err
	}
	return process.PID(), func() error { return process.Stop(20 * time.Second) }, nil
}

// startKubelet starts the kubelet of the lab's Kubernetes: maxPods 110, kubeAPIQPS 50 and burst 100
// like Bowline, parallel pulls.
func (b *bench) startKubelet(ctx context.Context) (pid int, stop func() error, err error) {
	if err := b.lab.do(ctx, "kubelet", theHost); err != nil {
		return 0, nil, err
	}
	stop = func() error { return b.lab.do(context.WithoutCancel(ctx), "kubelet", theHost, "--stop") }
	if pid, err = b.lab.pid(ctx, "kubelet"); err != nil {
		return 0, nil, errors.Join(err, stop())
	}
	return pid, stop, nil
}
