package replica

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/config"
)

// happening is one event in a world, and the time that follows it.
type happening struct {
	what  string
	which int // index of the member, or of the host
	then  time.Duration
}

// TestWhateverHappens: processes and machines die, are stopped, are cut off and reconnected; hosts
// come and go. In the end every host is managed by the replica that its Lease names, and they are
// spread evenly. Unless one was cut off, no two replicas ever believed that they held the same
// host.
func TestWhateverHappens(t *testing.T) {
	what := []string{"start", "start", "kill", "machine dies", "leave", "refuse", "swallow", "fix", "fix", "host comes", "host goes"}
	rapid.Check(t, func(rt *rapid.T) {
		var script []happening
		for range rapid.IntRange(1, 12).Draw(rt, "happenings") {
			script = append(script, happening{rapid.SampledFrom(what).Draw(rt, "what"), rapid.IntRange(0, 5).Draw(rt, "which"),
				rapid.SampledFrom([]time.Duration{0, 100 * time.Millisecond, 2 * time.Second, 7 * time.Second, 15 * time.Second, 45 * time.Second}).Draw(rt, "then")})
		}
		hosts := rapid.IntRange(0, 7).Draw(rt, "hosts")
		var wrong []string
		synctest.Test(t, func(t *testing.T) { wrong = befall(t, hosts, script) })
		if len(wrong) > 0 {
			rt.Fatalf("%s", strings.Join(wrong, "\n"))
		}
	})
}

func befall(t *testing.T, hosts int, script []happening) (wrong []string) {
	w := newWorld(t, hosts)
	defer w.end()
	blame := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	var living []*member
	begun := 0
	begin := func() {
		begun++
		living = append(living, w.start(fmt.Sprint("r", begun)))
	}
	tell := func() {
		for _, m := range living {
			m.r.Set(maps.Clone(w.hosts))
			m.r.Hosts(slices.Collect(maps.Keys(w.hosts)))
		}
	}
	begin()
	cut := false
	for i, h := range script {
		var m *member
		if n := len(living); n > 0 {
			m = living[h.which%n]
		}
		end := func(how func()) {
			how()
			living = slices.DeleteFunc(living, func(o *member) bool { return o == m })
		}
		switch {
		case h.what == "start":
			begin()
		case h.what == "host comes":
			name := fmt.Sprint("new-", i)
			w.hosts[name] = &config.Host{Name: name}
			tell()
		case h.what == "host goes":
			if names := slices.Sorted(maps.Keys(w.hosts)); len(names) > 0 {
				delete(w.hosts, names[h.which%len(names)])
				tell()
			}
		case m == nil:
		case h.what == "kill":
			end(func() { m.kill(0) })
		case h.what == "machine dies":
			end(func() { m.kill(15 * time.Second) })
		case h.what == "leave":
			end(m.cancel)
		case h.what == "refuse":
			m.wire.turn(refusing)
			cut = true
		case h.what == "swallow":
			m.wire.turn(swallowed)
			cut = true
		case h.what == "fix":
			m.wire.turn(whole)
		}
		w.after(h.then)
		synctest.Wait()
	}
	if !cut && len(w.both) > 0 {
		blame("no one was cut off, and two have believed to have %v", w.both)
	}
	begin()
	for _, m := range living {
		m.wire.turn(whole)
	}
	// client-go retries within a minute, 30 s pass before balancing, and moves pause.
	time.Sleep(4 * time.Minute)
	clear(w.both)
	w.after(10 * time.Second)
	if len(w.both) > 0 {
		blame("in the end two believe to have %v", w.both)
	}
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	count := map[*member]int{}
	for _, m := range living {
		count[m] = 0
	}
	for h := range w.hosts {
		by, l := w.locks[h], w.server.leases[leaseName(h)]
		if by == nil || l == nil || holder(l) != by.name || by.set[h] == nil || !slices.Contains(living, by) {
			blame("%s is managed by %v, its Lease is %v", h, by, l)
			continue
		}
		count[by]++
	}
	if sizes := slices.Sorted(maps.Values(count)); len(sizes) > 0 && sizes[len(sizes)-1]-sizes[0] > 1 {
		blame("in the end they have %v", sizes)
	}
	for h := range w.locks {
		if w.hosts[h] == nil {
			blame("%s is no more, and managed", h)
		}
	}
	for name, l := range w.server.leases {
		if strings.HasPrefix(name, hostPrefix) && w.hosts[strings.TrimPrefix(name, hostPrefix)] == nil {
			blame("%s is no more, and its Lease is %v", name, l.Spec)
		}
	}
	return wrong
}
