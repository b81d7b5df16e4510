package pool

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Verbose() {
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	os.Exit(m.Run())
}

// conduct is how a host's driver behaves, selected by the host's label.
type conduct struct {
	fails   time.Duration // it fails after this time; 0: never
	lingers time.Duration // from its cancellation to its end
}

var conducts = map[string]conduct{
	"steady":   {},
	"slow-end": {lingers: 4 * time.Second},
	"hung-end": {lingers: 20 * time.Minute},
	"fails":    {fails: time.Millisecond},
	"dies":     {fails: 90 * time.Second},
}

// checker observes the start and end of every driver, and what is wanted meanwhile.
type checker struct {
	mu      sync.Mutex
	wanted  map[string]*config.Host
	changes map[string]time.Time // by name: when its wanted configuration last changed
	live    map[*config.Host]string
	claimed map[config.Claim]string
	over    bool
	wrong   []string
}

func (j *checker) blame(format string, args ...any) {
	j.wrong = append(j.wrong, fmt.Sprintf(format, args...))
}

// set updates the checker, and then the pool.
func (j *checker) set(p *Pool, hosts map[string]*config.Host) {
	j.mu.Lock()
	for name := range conductsOfNames {
		a, b := j.wanted[name], hosts[name]
		if (a == nil) != (b == nil) || a != nil && b != nil && !reflect.DeepEqual(a, b) {
			j.changes[name] = time.Now()
		}
	}
	j.wanted = hosts
	j.mu.Unlock()
	p.Set(hosts)
}

func (j *checker) manage(ctx context.Context, h *config.Host) error {
	run := *h // a pointer unique to this run
	j.mu.Lock()
	if j.over {
		j.blame("%s begins after the end", h.Name)
	}
	for _, c := range append(h.Claims(), config.Claim{Field: "name", Value: h.Name}) {
		if other := j.claimed[c]; other != "" {
			j.blame("%s begins while %s has %v", h.Name, other, c)
		}
		j.claimed[c] = h.Name
	}
	j.live[&run] = h.Name
	began := time.Now()
	j.mu.Unlock()
	c := conducts[h.Labels["conduct"]]
	var fails <-chan time.Time
	if c.fails > 0 {
		fails = time.After(c.fails)
	}
	reported := false
	select {
	case <-fails:
	case <-ctx.Done():
		reported = true
	}
	if reported {
		j.mu.Lock()
		if !j.over && j.changes[h.Name].Before(began) {
			j.blame("%s was asked to end, and no one wanted it otherwise", h.Name)
		}
		j.mu.Unlock()
		time.Sleep(c.lingers)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.live, &run)
	for _, c := range append(h.Claims(), config.Claim{Field: "name", Value: h.Name}) {
		delete(j.claimed, c)
	}
	return errors.New("it failed")
}

// settled compares what is managed with what is wanted, long after the last change.
func (j *checker) settled(p *Pool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	states := p.States()
	managed := map[string]int{}
	for _, name := range j.live {
		managed[name]++
	}
	for name := range managed {
		if j.wanted[name] == nil {
			j.blame("%s is managed, and not wanted", name)
		}
	}
	for name := range states {
		if j.wanted[name] == nil {
			j.blame("%s is shown as %s, and not wanted", name, states[name].Phase)
		}
	}
	for name, h := range j.wanted {
		s := states[name]
		switch conducts[h.Labels["conduct"]].fails {
		case 0:
			if s.Phase != Managed || managed[name] != 1 || s.Err != nil {
				j.blame("%s is %+v with %d drivers", name, s, managed[name])
			}
		default:
			if s.Err == nil || s.Phase != Managed && s.Phase != Failed {
				j.blame("%s, which fails, is %+v", name, s)
			}
		}
	}
	for run := range j.live {
		if w := j.wanted[run.Name]; w != nil && !reflect.DeepEqual(w, run) {
			j.blame("%s is managed as it was wanted before", run.Name)
		}
	}
}

var conductsOfNames = map[string]bool{"a": true, "b": true, "c": true, "d": true}

// turnOfEvents is one Set and the pause after it.
type turnOfEvents struct {
	hosts map[string]*config.Host
	pause time.Duration
}

// drawHosts draws some of the names, on three machines and with two ports.
func drawHosts(rt *rapid.T) map[string]*config.Host {
	hosts := map[string]*config.Host{}
	taken := map[config.Claim]bool{}
	for _, name := range []string{"a", "b", "c", "d"} {
		if !rapid.Bool().Draw(rt, "wanted "+name) {
			continue
		}
		h := &config.Host{
			Name:     name,
			Endpoint: "ssh://root@m" + rapid.SampledFrom([]string{"1", "2", "3", name}).Draw(rt, "machine") + "/s",
			Labels:   map[string]string{"conduct": rapid.SampledFrom([]string{"steady", "steady", "slow-end", "hung-end", "fails", "dies"}).Draw(rt, "conduct")},
		}
		h.Server.Port = int32(rapid.IntRange(0, 2).Draw(rt, "port"))
		// A source of hosts never passes two hosts with the same claim.
		if slices.ContainsFunc(h.Claims(), func(c config.Claim) bool { return taken[c] }) {
			continue
		}
		for _, c := range h.Claims() {
			taken[c] = true
		}
		hosts[name] = h
	}
	return hosts
}

// TestWhateverIsWanted: for any sequence of Sets, and however drivers behave, there is at most one
// driver per name and per machine, none is cancelled that was wanted all along, in the end exactly
// the wanted ones run, and none runs after the end of Run.
func TestWhateverIsWanted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var script []turnOfEvents
		for range rapid.IntRange(1, 8).Draw(rt, "turns") {
			e := turnOfEvents{hosts: drawHosts(rt)}
			if len(script) > 0 && rapid.Bool().Draw(rt, "only one changes") {
				// Often most hosts are unchanged.
				fresh := e.hosts
				e.hosts = map[string]*config.Host{}
				for name, h := range script[len(script)-1].hosts {
					again := *h
					e.hosts[name] = &again
				}
				name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "which")
				if delete(e.hosts, name); fresh[name] != nil && !clash(e.hosts, fresh[name]) {
					e.hosts[name] = fresh[name]
				}
			}
			e.pause = rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, turnTime, time.Second, 3 * time.Second, 10 * time.Second, 3 * time.Minute}).Draw(rt, "pause")
			script = append(script, e)
		}
		j := &checker{changes: map[string]time.Time{}, live: map[*config.Host]string{}, claimed: map[config.Claim]string{}}
		synctest.Test(t, func(t *testing.T) {
			p := New(j.manage, Options{})
			stop := testutil.Go(t.Context(), p.Run)
			for _, e := range script {
				j.set(p, e.hosts)
				time.Sleep(e.pause)
			}
			// Drivers that hang end one after another, at most one per Set.
			time.Sleep(time.Duration(len(script)+1)*conducts["hung-end"].lingers + 5*time.Minute)
			j.settled(p)
			j.mu.Lock()
			j.over = true
			j.mu.Unlock()
			err := stop()
			j.mu.Lock()
			defer j.mu.Unlock()
			if err != nil || len(j.live) != 0 || len(p.States()) != 0 {
				j.blame("at its end: %v, %d drivers, %v", err, len(j.live), p.States())
			}
		})
		if len(j.wrong) > 0 {
			rt.Fatalf("%s", strings.Join(j.wrong, "\n"))
		}
	})
}

func clash(hosts map[string]*config.Host, h *config.Host) bool {
	for _, other := range hosts {
		for _, c := range other.Claims() {
			if slices.Contains(h.Claims(), c) {
				return true
			}
		}
	}
	return false
}
