package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/test/fakehosts"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// scraper asks each node for pages once in each period, as a program that collects metrics does.
type scraper struct {
	name   string
	period time.Duration
	pages  []string
	// spread: the nodes' turns are spread over the period, as Prometheus does. Otherwise all nodes are
	// asked at once, as metrics-server does.
	spread bool
}

var scrapers = []scraper{
	{name: "metrics-server, every 15 s", period: 15 * time.Second, pages: []string{"metrics/resource"}},
	{name: "Prometheus, every 30 s", period: 30 * time.Second, pages: []string{"metrics", "metrics/cadvisor", "metrics/probes"}, spread: true},
}

// scrapesTime is how long each combination of scrapers is measured: some periods of each.
const scrapesTime = 2 * time.Minute

// load is the process's use of resources while scrapers run.
type load struct {
	scrapers string
	usage
	link    float64 // bytes a second on each host's link, both directions together
	scrapes int
}

// measureScrapes measures without a scraper, with the first, and with all of them.
func (c *rig) measureScrapes(ctx context.Context) (all []load, err error) {
	if err := c.containerCgroups(ctx); err != nil {
		return nil, err
	}
	name := "none"
	for n := range len(scrapers) + 1 {
		if n > 0 {
			name = scrapers[n-1].name
		}
		if n > 1 {
			name = "and " + name
		}
		l, err := c.loadOf(ctx, scrapers[:n])
		if err != nil {
			return nil, fmt.Errorf("scrapers %s: %w\n%s", name, err, c.bowline.LogTail(2000))
		}
		l.scrapers = name
		all = append(all, l)
		fmt.Fprintf(os.Stderr, "%s: %.3f cores, %s, %.0f B/s; %d scrapes; load %s\n", name, l.cpu, mib(l.memory), l.link, l.scrapes, labtest.Load())
	}
	return all, nil
}

// loadOf measures while the scrapers run.
func (c *rig) loadOf(ctx context.Context, with []scraper) (l load, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	var mu sync.Mutex
	for _, s := range with {
		for i, m := range c.fakes.Machines[:c.managed] {
			first := time.Duration(0)
			if s.spread {
				first = s.period * time.Duration(i) / time.Duration(c.managed)
			}
			group.Go(func() error {
				return s.run(ctx, first, func(page string) error {
					_, err := c.fakes.Lab.Client.CoreV1().RESTClient().Get().Resource("nodes").Name(m.Name).SubResource("proxy").Suffix(page).DoRaw(ctx)
					if err != nil && ctx.Err() == nil {
						return fmt.Errorf("scrape /%s of %s: %w", page, m.Name, err)
					}
					mu.Lock()
					defer mu.Unlock()
					l.scrapes++
					return nil
				})
			})
		}
	}
	group.Go(func() (err error) {
		defer cancel()
		if err := pause(ctx, settleTime); err != nil {
			return err
		}
		from := c.carried()
		l.usage, err = c.usageOver(ctx, scrapesTime)
		l.link = float64(c.carried()-from) / scrapesTime.Seconds() / float64(c.managed)
		return err
	})
	if err := group.Wait(); err != nil {
		return l, err
	}
	return l, nil
}

// run scrapes until ctx ends.
func (s scraper) run(ctx context.Context, first time.Duration, scrape func(page string) error) error {
	next := time.Now().Add(first)
	for {
		if pause(ctx, time.Until(next)) != nil {
			return nil
		}
		for _, page := range s.pages {
			if err := scrape(page); err != nil {
				return err
			}
		}
		next = next.Add(s.period)
	}
}

// carried is the number of bytes that all links have carried.
func (c *rig) carried() (n int64) {
	for _, m := range c.fakes.Machines[:c.managed] {
		forth, back := m.Wire.Carried()
		n += forth + back
	}
	return n
}

// containerCgroups makes the cgroups that a real runtime would make below those of the pods, so that
// each host has as many counters as a real one.
func (c *rig) containerCgroups(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for _, m := range c.fakes.Machines[:c.managed] {
		group.Go(func() error {
			if err := makeCgroups(ctx, m); err != nil {
				return fmt.Errorf("make the containers' cgroups on %s: %w", m.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

func makeCgroups(ctx context.Context, m *fakehosts.Machine) error {
	client, err := cri.Connect(ctx, cri.Config{Dial: m.Runtime.Dial})
	if err != nil {
		return err
	}
	defer client.Close()
	sandboxes, err := client.ListPodSandbox(ctx, nil)
	if err != nil {
		return err
	}
	containers, err := client.ListContainers(ctx, nil)
	if err != nil {
		return err
	}
	ids := map[string][]string{} // UID of a pod -> its sandboxes and containers
	pods := map[string]string{}
	for _, s := range sandboxes {
		uid := s.GetMetadata().GetUid()
		pods[s.GetId()] = uid
		ids[uid] = append(ids[uid], s.GetId())
	}
	for _, k := range containers {
		uid := pods[k.GetPodSandboxId()]
		ids[uid] = append(ids[uid], k.GetId())
	}
	made := 0
	for uid, each := range ids {
		// On a host with cgroup v1 every controller has its own tree.
		dirs, err := podCgroups(m, uid)
		if err != nil {
			return err
		}
		for _, dir := range dirs {
			for _, id := range each {
				if err := os.Mkdir(filepath.Join(dir, id), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
					return err
				}
				made++
			}
		}
	}
	if made == 0 {
		return errors.New("no pod has a cgroup")
	}
	return nil
}

// podCgroups returns the directories of a pod's cgroup, as seen from outside the machine.
func podCgroups(m *fakehosts.Machine, uid string) (dirs []string, err error) {
	root := m.Path("/sys/fs/cgroup")
	for _, hierarchy := range []string{"", "*"} {
		for _, class := range []string{"", "besteffort", "burstable"} {
			found, err := filepath.Glob(path.Join(root, hierarchy, "kubepods", class, "pod"+uid))
			if err != nil {
				return nil, err
			}
			dirs = append(dirs, found...)
		}
	}
	return dirs, nil
}

// scrapesDocument is the section of docs/bench.md about many nodes.
func (c *rig) scrapesDocument(all []load) []byte {
	table := [][]string{{"scrapers", "CPU of the process, cores", "memory", "link of each host, a second", "scrapes"}}
	for _, l := range all {
		table = append(table, []string{l.scrapers, fmt.Sprintf("%.3f", l.cpu), mib(l.memory), fmt.Sprintf("%.0f B", l.link), fmt.Sprint(l.scrapes)})
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "## Scrapes of %d nodes\n\n", c.managed)
	labtest.Table(&text, table)
	fmt.Fprintf(&text, `
- One process manages %d remote hosts with %d pods each. As in bench-pool.md, each host has a real sshd and a fake container runtime; the pods and their containers have real cgroups, in which no process runs.
- Each line is measured over %s. metrics-server gets /metrics/resource of all nodes at once. Prometheus gets /metrics, /metrics/cadvisor and /metrics/probes of one node after the other. Both ask through the API server. A scrape that fails ends the measurement.
`, c.managed, c.pods, scrapesTime)
	return text.Bytes()
}
