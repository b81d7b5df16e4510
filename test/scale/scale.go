package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/test/fakehosts"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// patience is many times what the awaited step takes.
const patience = 15 * time.Minute

// settleTime lets the work that trails a change finish, mostly events.
const settleTime = 20 * time.Second

// rig is the cluster, its machines, and the process that manages them.
type rig struct {
	options
	dir       string
	fakes     *fakehosts.Set
	bowline   *labtest.Bowline
	namespace string
	watch     *readyWatch
	unwatch   context.CancelFunc
	managed   int
	empty     int64 // resident bytes with the first host only
	steps     []step
	rounds    []round
	made      int // number of pods whose start was timed
	// watchesBefore counts the watches of Services by clients other than Bowline; watches is the
	// maximum of Bowline's after any step.
	watchesBefore, watches int
}

// step is the process's use of resources with this many hosts and their pods.
type step struct {
	hosts, pods int
	bare, full  usage // before and after the last hosts got their pods
	up, filled  time.Duration
}

// usage is the process's use of resources while nothing changes.
type usage struct {
	memory int64   // resident, bytes
	cpu    float64 // of one core
}

func (s step) String() string {
	return fmt.Sprintf("%3d hosts: %s %.3f cores; with %d pods: %s %.3f cores; nodes Ready after %s, pods after %s; load %s", s.hosts,
		mib(s.bare.memory), s.bare.cpu, s.pods, mib(s.full.memory), s.full.cpu, s.up.Round(time.Second), s.filled.Round(time.Second), labtest.Load())
}

// begin brings up all machines, and starts the process with the first of them.
func begin(ctx context.Context, o options) (c *rig, err error) {
	c = &rig{options: o}
	if c.dir, err = os.MkdirTemp("", "bowline-scale"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.end())
		}
	}()
	began := time.Now()
	if c.fakes, err = fakehosts.Start(ctx, filepath.Join(c.dir, "lab"), o.hosts[len(o.hosts)-1]); err != nil {
		return c, err
	}
	fmt.Fprintf(os.Stderr, "%d machines are up after %s\n", len(c.fakes.Machines), time.Since(began).Round(time.Second))
	if err := c.prepare(ctx); err != nil {
		return c, err
	}
	watched, unwatch := context.WithCancel(ctx)
	c.unwatch = unwatch
	if c.watch, err = watchPods(watched, c.fakes.Lab.Client, c.namespace); err != nil {
		return c, err
	}
	if err := c.configure(1); err != nil {
		return c, err
	}
	first := c.fakes.Machines[0]
	c.bowline = &labtest.Bowline{Lab: c.fakes.Lab, Host: first.Name, Wire: first.Wire, Program: o.bowline,
		Config: c.config(), LogPath: filepath.Join(c.dir, "bowline.log")}
	if err := c.bowline.Start(); err != nil {
		return c, err
	}
	if _, err := c.fakes.Lab.NodeReady(ctx, first.Name, v1.ConditionTrue, patience); err != nil {
		return c, fmt.Errorf("%w\n%s", err, c.bowline.LogTail(2000))
	}
	u, err := c.usage(ctx)
	c.empty, c.managed = u.memory, 1
	return c, err
}

// end removes everything; the log stays if the process failed.
func (c *rig) end() error {
	var errs []error
	if c.bowline != nil {
		errs = append(errs, c.bowline.Stop())
	}
	if c.unwatch != nil {
		c.unwatch()
	}
	if c.fakes != nil {
		errs = append(errs, c.fakes.Close(context.Background()))
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// prepare removes the cluster's own pods, which fake machines cannot run, and makes a namespace.
func (c *rig) prepare(ctx context.Context) error {
	lab := c.fakes.Lab
	err := lab.Empty(ctx)
	if err == nil {
		c.namespace, err = labtest.Namespace(ctx, lab.Client, "scale-", patience)
	}
	if err != nil {
		return err
	}
	if err := c.makeServices(ctx); err != nil {
		return err
	}
	c.watchesBefore, err = c.serviceWatches(ctx)
	return err
}

func (c *rig) config() string { return filepath.Join(c.dir, "bowline.yaml") }

// configure writes the configuration of the first n hosts; the process watches the file.
func (c *rig) configure(n int) error {
	text := c.fakes.Lab.ConfigHead()
	for _, m := range c.fakes.Machines[:n] {
		lines, err := c.fakes.Lab.SSHLines(m.Name, m.Wire.Address())
		if err != nil {
			return err
		}
		text += c.fakes.Lab.ConfigHost(m.Name, lines...)
	}
	next := c.config() + ".next"
	return errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, c.config()))
}

// step adds hosts until there are n, and fills them with pods.
func (c *rig) step(ctx context.Context, n int) (s step, err error) {
	s = step{hosts: n, pods: n * c.pods}
	fresh := c.fakes.Machines[c.managed:n]
	if c.managed == 1 {
		fresh = c.fakes.Machines[:n] // the first host has no pods yet
	}
	began := time.Now()
	if err := c.configure(n); err != nil {
		return s, err
	}
	for _, m := range fresh {
		if _, err := c.fakes.Lab.NodeReady(ctx, m.Name, v1.ConditionTrue, patience); err != nil {
			return s, fmt.Errorf("%w\n%s", err, c.bowline.LogTail(2000))
		}
	}
	s.up, c.managed = time.Since(began), n
	if s.bare, err = c.usage(ctx); err != nil {
		return s, err
	}
	watches, err := c.serviceWatches(ctx)
	if err != nil {
		return s, err
	}
	c.watches = max(c.watches, watches-c.watchesBefore)
	began = time.Now()
	if err := c.fill(ctx, fresh); err != nil {
		return s, err
	}
	s.filled = time.Since(began)
	s.full, err = c.usage(ctx)
	return s, err
}

// fillAtOnce is the number of concurrent pod starts while machines are filled. All machines share
// the processors of this one: if all their pods started at once, none of the machines would answer
// in time.
const fillAtOnce = 48

// fill makes the pods of each machine, and waits until they are Ready.
func (c *rig) fill(ctx context.Context, machines []*fakehosts.Machine) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	names := make(chan [2]string)
	var all sync.WaitGroup
	for range fillAtOnce {
		all.Go(func() {
			for n := range names {
				err := c.create(ctx, n[0], n[1])
				if err == nil {
					_, err = c.watch.ready(ctx, n[0], patience)
				}
				if err != nil {
					cancel(fmt.Errorf("%w\n%s", err, c.bowline.LogTail(2000)))
				}
			}
		})
	}
	for i := range c.pods {
		for _, m := range machines {
			select {
			case names <- [2]string{fmt.Sprintf("%s-%d", m.Name, i), m.Name}:
			case <-ctx.Done():
			}
		}
	}
	close(names)
	all.Wait()
	return context.Cause(ctx)
}

// create makes a pod that only waits; it has a service account's token.
func (c *rig) create(ctx context.Context, name, node string) error {
	grace := int64(1)
	_, err := c.fakes.Lab.Client.CoreV1().Pods(c.namespace).Create(ctx, &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: &grace,
			Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists}},
			Containers: []v1.Container{{
				Name: "main", Image: "registry.lab/" + fake.TestImage + ":scale", ImagePullPolicy: v1.PullIfNotPresent,
				Command: []string{"/" + fake.TestImage, "wait"},
			}},
		},
	}, metav1.CreateOptions{})
	return err
}

// usage waits until pending work has finished, and then measures the idle cost.
func (c *rig) usage(ctx context.Context) (u usage, err error) {
	if err := pause(ctx, settleTime); err != nil {
		return u, err
	}
	return c.usageOver(ctx, c.idle)
}

// usageOver measures the use over d.
func (c *rig) usageOver(ctx context.Context, d time.Duration) (u usage, err error) {
	pid := c.bowline.PID()
	before, err := labtest.CPUTime(pid)
	if err != nil {
		return u, err
	}
	began := time.Now()
	if err := pause(ctx, d); err != nil {
		return u, err
	}
	after, err := labtest.CPUTime(pid)
	if err != nil {
		return u, err
	}
	u.cpu = (after - before).Seconds() / time.Since(began).Seconds()
	u.memory, err = labtest.Memory(pid, "VmRSS")
	return u, err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func mib(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }
