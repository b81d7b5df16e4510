package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// The settings of the idle link's measurement.
const (
	linkPods = 30
	// linkTime covers two listings of the pods, which run each 60 s.
	linkTime = 2 * time.Minute
	// recordDir holds one file for each pod that has something on the host.
	recordDir = "/var/lib/kubelet/bowline/pods"
	onePods   = 7 // runs of the single pod; the median counts
)

// linkCost is the traffic of a link, both directions together, in bytes.
type linkCost struct {
	idle    float64 // per second, with linkPods pods without probes
	probe   float64 // one HTTP probe
	scrapes []scrapeCosts
}

// startRemote starts a build of Bowline outside the host and connects it over wire.
func (b *bench) startRemote(ctx context.Context, program string, wire *labtest.Wire) (pid int, stop func() error, err error) {
	h := b.lab.host()
	key, err := os.ReadFile(h.SSH.HostKey)
	if err != nil {
		return 0, nil, err
	}
	file, err := b.config(fmt.Sprintf("endpoint: ssh://%s@%s%s\n  nodeIP: %s\n  ssh: {identityFile: %s, hostKeys: [%q]}",
		h.SSH.User, wire.Address(), h.RuntimeSocket, h.IP, h.SSH.Key, strings.TrimSpace(string(key))))
	if err != nil {
		return 0, nil, err
	}
	cmd := exec.CommandContext(ctx, program, "run", "--config", file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return b.launch(cmd)
}

// onePod measures the time from the request for a pod with a token, a configMap and two containers
// to the event that shows it Ready. It returns the median of several pods, one after the other.
func (b *bench) onePod(ctx context.Context, client kubernetes.Interface) (time.Duration, error) {
	maps := client.CoreV1().ConfigMaps(namespace)
	_, err := maps.Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Data: map[string]string{"a": "1", "b": "2"}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return 0, err
	}
	var times []time.Duration
	for i := range onePods + 1 {
		t, err := b.oneTry(ctx, client, fmt.Sprintf("one-%d", i))
		if err != nil {
			return 0, err
		}
		if i > 0 { // the first one warms up the caches
			times = append(times, t)
		}
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

func (b *bench) oneTry(ctx context.Context, client kubernetes.Interface, name string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, waveLimit)
	defer cancel()
	p := podSpec(0, false)
	p.Name, p.Labels = name, nil
	second := p.Spec.Containers[0].DeepCopy()
	second.Name = "second"
	p.Spec.Containers = append(p.Spec.Containers, *second)
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].VolumeMounts = []v1.VolumeMount{{Name: "config", MountPath: "/config"}}
	}
	p.Spec.Volumes = []v1.Volume{{Name: "config", VolumeSource: v1.VolumeSource{
		ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "one"}}}}}
	pods := client.CoreV1().Pods(namespace)
	seen, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return 0, err
	}
	defer seen.Stop()
	began := time.Now()
	if _, err := pods.Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	for {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("pod %s is not Ready: %w", name, ctx.Err())
		case e, open := <-seen.ResultChan():
			if !open {
				return 0, fmt.Errorf("the watch of pod %s ended", name)
			}
			if p, ok := e.Object.(*v1.Pod); !ok || !labtest.IsReady(p) {
				continue
			}
		}
		break
	}
	took := time.Since(began)
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return 0, err
	}
	return took, b.lab.PodGone(ctx, namespace, name, waveLimit)
}

// linkCost measures on the wire the traffic of an idle node, and what probes and scrapes add.
func (b *bench) linkCost(ctx context.Context, client kubernetes.Interface, wire *labtest.Wire) (c linkCost, err error) {
	carried := func() float64 {
		forth, back := wire.Carried()
		return float64(forth + back)
	}
	measure := func(d time.Duration) (float64, error) {
		from, began := carried(), time.Now()
		if err := pause(ctx, d); err != nil {
			return 0, err
		}
		return (carried() - from) / time.Since(began).Seconds(), nil
	}
	// Two sweeps, a minute apart, collect what earlier pods left.
	collected := func() error {
		defer waitForIdle(ctx)
		return labtest.Until(ctx, waveLimit, "the garbage is collected", func(ctx context.Context) error {
			out, err := b.lab.Exec(ctx, theHost, "ls", recordDir).Output()
			if n := strings.Count(string(out), "\n"); err == nil && n > linkPods {
				err = fmt.Errorf("%d records are there", n)
			}
			return err
		})
	}
	quiet := wave{client: client, n: linkPods}
	if _, err := quiet.up(ctx); err != nil {
		return c, err
	}
	if err := collected(); err != nil {
		return c, err
	}
	if c.idle, err = measure(linkTime); err != nil {
		return c, err
	}
	fmt.Fprintf(os.Stderr, "the idle link: %.0f B a second\n", c.idle)
	if _, err := quiet.down(ctx); err != nil {
		return c, err
	}
	probed := wave{client: client, n: linkPods, probed: true}
	if _, err := probed.up(ctx); err != nil {
		return c, err
	}
	if err := collected(); err != nil {
		return c, err
	}
	rate, err := measure(linkTime)
	if err != nil {
		return c, err
	}
	c.probe = (rate - c.idle) / (float64(linkPods) / probePeriod.Seconds())
	if _, err = probed.down(ctx); err != nil {
		return c, err
	}
	for _, n := range scrapePods {
		w := wave{client: client, n: n}
		if _, err := w.up(ctx); err != nil {
			return c, err
		}
		waitForIdle(ctx)
		cost, err := b.scrapeCosts(ctx, client, wire, n)
		if err != nil {
			return c, err
		}
		c.scrapes = append(c.scrapes, cost)
		if _, err := w.down(ctx); err != nil {
			return c, err
		}
	}
	return c, nil
}

// A figure is a measured value of a system, in a row of remoteTable and of baseTable.
type figure struct {
	name string
	read func(result) float64
	show func(float64) string
	of   float64 // target for SSH over loopback, relative to the local socket; 0: none
}

// figures returns what is measured over the local socket and over SSH.
func (b *bench) figures() []figure {
	return []figure{
		{fmt.Sprintf("%d pods to all Ready", b.pods), func(r result) float64 { return r.up.Seconds() }, seconds, 1.15},
		{fmt.Sprintf("%d pods to all gone", b.pods), func(r result) float64 { return r.down.Seconds() }, seconds, 1.15},
		{"one pod to Ready: token, configMap, two containers", func(r result) float64 { return r.one.Seconds() }, milliseconds, 0},
		{"CPU of the agent for both waves", func(r result) float64 { return r.agentWork.Seconds() }, seconds, 0},
		{"peak memory of the agent (VmHWM)", func(r result) float64 { return float64(r.memory) }, func(n float64) string { return mib(int64(n)) }, 0},
	}
}

func seconds(s float64) string { return fmt.Sprintf("%.2f s", s) }

func milliseconds(s float64) string { return fmt.Sprintf("%.0f ms", s*1000) }

// remoteTable compares the local socket and SSH.
func remoteTable(b *bench) [][]string {
	systems := []string{sysBowline, sysSSH, sysSSH10, sysSSH50}
	table := [][]string{{"", "local socket", "SSH, 0 ms", "SSH, 10 ms", "SSH, 50 ms", "SSH/local", "aim"}}
	if len(b.results[sysSSH]) == 0 {
		return nil
	}
	verdict := func(aim string, met bool) string { return aim + map[bool]string{true: ": met", false: ": missed"}[met] }
	for _, r := range b.figures() {
		line := []string{r.name}
		values := map[string]float64{}
		for _, s := range systems {
			v, ok := median(b.results[s], r.read)
			if !ok {
				line = append(line, "-")
				continue
			}
			values[s] = v
			line = append(line, r.show(v))
		}
		local, remote := values[sysBowline], values[sysSSH]
		if local == 0 || remote == 0 {
			table = append(table, append(line, "-", ""))
			continue
		}
		aim := ""
		if r.of != 0 {
			aim = verdict(fmt.Sprintf("≤ %.2f", r.of), remote <= r.of*local)
		}
		table = append(table, append(line, fmt.Sprintf("%.2f", remote/local), aim))
	}
	one := func(r result) float64 { return r.one.Seconds() }
	if slow, ok := median(b.results[sysSSH50], one); ok {
		quick, _ := median(b.results[sysSSH], one)
		trips := (slow - quick) / 0.1
		table = append(table, []string{"round trips of that pod: (at 50 ms - at 0 ms) / 100 ms", "", fmt.Sprintf("%.1f", trips), "", "", "", verdict("≤ 12", trips <= 12)})
	}
	if b.options.idle > 0 {
		link := b.results[sysSSH][0].link
		bytes := func(n float64) string {
			if n <= 0 { // less than the variation of the idle link
				return "-"
			}
			return fmt.Sprintf("%.0f B", n)
		}
		table = append(table,
			[]string{fmt.Sprintf("the idle link with %d pods, a second", linkPods), "", bytes(link.idle), "", "", "", verdict("< 2048 B", link.idle < 2048)},
			[]string{"an HTTP probe", "", bytes(link.probe), "", "", "", ""})
	}
	return table
}
