package shard

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var long = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC) // long ago

// seen reads "a b- c" as replicas, of which b is leaving, and "1a 2b 3" as hosts, of which 3 has no
// holder. All of it has been so for an hour.
func seen(replicas, hosts string) Input {
	in := Input{Holders: map[string]string{}, Changed: long, Moved: long, Now: long.Add(time.Hour)}
	for _, r := range strings.Fields(replicas) {
		name, leaving := strings.CutSuffix(r, "-")
		in.Replicas = append(in.Replicas, Replica{name, leaving})
	}
	for _, h := range strings.Fields(hosts) {
		in.Hosts = append(in.Hosts, h[:1])
		if len(h) > 1 {
			in.Holders[h[:1]] = h[1:]
		}
	}
	return in
}

func TestDecide(t *testing.T) {
	for _, c := range []struct {
		what, replicas, hosts string
		changed, moved        time.Duration // how long ago; 0: an hour
		want                  string
		wake                  time.Duration // 0: never
	}{
		{what: "nothing there"},
		{what: "no one lives", hosts: "1a 2b 3"},
		{what: "a new host goes to who has the fewest", replicas: "a b", hosts: "1a 2", want: "2>b Unheld"},
		{what: "of equals the first has it", replicas: "b a", hosts: "1", want: "1>a Unheld"},
		{what: "one of another's end is taken at once", replicas: "b c", hosts: "1a 2a 3b 4c", changed: time.Second, moved: time.Millisecond,
			want: "1a>b Unheld, 2a>c Unheld"},
		{what: "alone it has all", replicas: "b", hosts: "1a 2b 3 4c", changed: time.Second, want: "1a>b Unheld, 3>b Unheld, 4c>b Unheld"},
		{what: "who leaves takes none", replicas: "a- b", hosts: "1 2b 3b", want: "1>b Unheld"},
		{what: "who leaves gives one at a time, at once", replicas: "a- b c", hosts: "1a 2a 3b", changed: time.Second, moved: time.Millisecond, want: "1a>c Leaving"},
		{what: "two that leave give one each", replicas: "a- b- c", hosts: "1a 2a 3b 4b", want: "1a>c Leaving, 3b>c Leaving"},
		{what: "the last that leaves keeps what it has", replicas: "a- b-", hosts: "1a 2b 3c 4"},
		{what: "within one it is balanced", replicas: "a b", hosts: "1a 2a 3b"},
		{what: "one move for the balance", replicas: "a b", hosts: "1b 2a 3a 4a 5a 6a", want: "2a>b Balance"},
		{what: "not soon after a change", replicas: "a b", hosts: "1a 2a 3a", changed: 10 * time.Second, wake: 20 * time.Second},
		{what: "when it has settled", replicas: "a b", hosts: "1a 2a 3a", changed: Settle, want: "1a>b Balance"},
		{what: "not soon after a move", replicas: "a b", hosts: "1a 2a 3a", moved: Pause / 2, wake: Pause / 2},
		{what: "the later of both", replicas: "a b", hosts: "1a 2a 3a", changed: Settle - time.Second, moved: Pause / 4, wake: Pause * 3 / 4},
		{what: "who has none takes them first", replicas: "a b", hosts: "1a 2a 3a 4a 5", want: "5>b Unheld"},
	} {
		in := seen(c.replicas, c.hosts)
		if c.changed > 0 {
			in.Changed = in.Now.Add(-c.changed)
		}
		if c.moved > 0 {
			in.Moved = in.Now.Add(-c.moved)
		}
		p := Decide(in)
		var got []string
		for _, m := range p.Moves {
			got = append(got, fmt.Sprintf("%s%s>%s %s", m.Host, m.From, m.To, m.Reason))
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %q, and not %q", c.what, strings.Join(got, ", "), c.want)
		}
		if wake := p.WakeAt; wake.IsZero() != (c.wake == 0) || !wake.IsZero() && wake.Sub(in.Now) != c.wake {
			t.Errorf("%s: it wakes at %v, now is %v", c.what, wake, in.Now)
		}
	}
}

// wrong says what is wrong with a plan, by a direct reading of the rules.
func wrong(in Input, p Plan) string {
	takes, lives := map[string]bool{}, map[string]bool{}
	for _, r := range in.Replicas {
		takes[r.Name], lives[r.Name] = !r.Leaving, true
	}
	anyone := slices.Contains(slices.Collect(maps.Values(takes)), true)
	moved, gives := map[string]bool{}, map[string]int{}
	for _, m := range p.Moves {
		holder := in.Holders[m.Host]
		switch {
		case !slices.Contains(in.Hosts, m.Host):
			return m.Host + " is no host"
		case moved[m.Host]:
			return m.Host + " moves twice"
		case m.From != holder:
			return m.Host + " is not that one's"
		case !takes[m.To] || m.To == m.From:
			return m.Host + " goes to no one who could take it"
		case (m.Reason == Unheld) != !lives[holder],
			(m.Reason == Leaving) != (lives[holder] && !takes[holder]),
			(m.Reason == Balance) != takes[holder]:
			return m.Host + " moves for another reason than it says"
		}
		moved[m.Host] = true
		if lives[holder] {
			gives[holder]++
		}
		if m.Reason != Balance {
			continue
		}
		count := map[string]int{}
		for _, h := range in.Hosts {
			count[in.Holders[h]]++
		}
		switch {
		case len(p.Moves) > 1:
			return "a move for the balance beside another"
		case count[m.From]-count[m.To] <= 1:
			return m.Host + " moves for the balance, and there is one"
		case in.Now.Sub(in.Changed) < Settle, in.Now.Sub(in.Moved) < Pause:
			return m.Host + " moves too soon"
		}
	}
	for who, n := range gives {
		if n > 1 {
			return fmt.Sprintf("%s gives %d at once", who, n)
		}
	}
	for _, h := range in.Hosts {
		if anyone && !lives[in.Holders[h]] && !moved[h] {
			return h + " is no one's"
		}
	}
	return ""
}

// apply executes a plan, and advances the time to WakeAt.
func apply(in Input, p Plan) Input {
	in.Holders = maps.Clone(in.Holders)
	for _, m := range p.Moves {
		in.Holders[m.Host] = m.To
		in.Moved = in.Now
	}
	if p.WakeAt.After(in.Now) {
		in.Now = p.WakeAt
	}
	return in
}

// fewestMoves is the least number of hosts that must move. The replicas with the most hosts keep
// the larger shares, because that moves fewest.
func fewestMoves(in Input) int {
	count := map[string]int{}
	n := 0
	for _, r := range in.Replicas {
		if !r.Leaving {
			count[r.Name] = 0
			n++
		}
	}
	if n == 0 {
		return 0
	}
	moves := 0
	for _, h := range in.Hosts {
		if _, ok := count[in.Holders[h]]; ok {
			count[in.Holders[h]]++
		} else {
			moves++
		}
	}
	sizes := slices.Sorted(maps.Values(count))
	slices.Reverse(sizes)
	for i, size := range sizes {
		share := len(in.Hosts) / n
		if i < len(in.Hosts)%n {
			share++
		}
		moves += max(0, size-share)
	}
	return moves
}

// settles applies plans until none is left, and says what was wrong on the way.
func settles(in Input) string {
	want, moves := fewestMoves(in), 0
	for range 3*len(in.Hosts) + 3 {
		p := Decide(in)
		if fault := wrong(in, p); fault != "" {
			return fault
		}
		if len(p.Moves) == 0 && p.WakeAt.IsZero() {
			break
		}
		if len(p.Moves) == 0 && !p.WakeAt.After(in.Now) {
			return "it wakes for nothing"
		}
		moves += len(p.Moves)
		in = apply(in, p)
	}
	if p := Decide(in); len(p.Moves) > 0 || !p.WakeAt.IsZero() {
		return "it does not come to an end"
	}
	count := map[string]int{}
	for _, r := range in.Replicas {
		if !r.Leaving {
			count[r.Name] = 0
		}
	}
	if len(count) == 0 {
		return ""
	}
	for _, h := range in.Hosts {
		if _, ok := count[in.Holders[h]]; !ok {
			return h + " is with no one who takes hosts"
		}
		count[in.Holders[h]]++
	}
	if sizes := slices.Sorted(maps.Values(count)); sizes[len(sizes)-1]-sizes[0] > 1 {
		return fmt.Sprintf("in the end they have %v", sizes)
	}
	if moves != want {
		return fmt.Sprintf("%d moves, where %d do", moves, want)
	}
	return ""
}

// TestAllSmall covers every case of up to three replicas, each gone, living or leaving, and of five
// hosts, each held by one of them or by none; settled, and not.
func TestAllSmall(t *testing.T) {
	const hosts = "12345"
	names := []string{"a", "b", "c"}
	cases := 0
	for states := range 27 {
		var replicas []string
		for i, s := 0, states; i < len(names); i, s = i+1, s/3 {
			if s%3 > 0 {
				replicas = append(replicas, names[i]+[]string{"", "-"}[s%3-1])
			}
		}
		for held := range 4 * 4 * 4 * 4 * 4 {
			var all []string
			for i, s := 0, held; i < len(hosts); i, s = i+1, s/4 {
				all = append(all, hosts[i:i+1]+append(names, "")[s%4])
			}
			in := seen(strings.Join(replicas, " "), strings.Join(all, " "))
			soon := in
			soon.Changed = soon.Now
			for _, in := range []Input{in, soon} {
				cases++
				if fault := settles(in); fault != "" {
					t.Fatalf("replicas %v, hosts %v: %s", replicas, all, fault)
				}
			}
		}
	}
	if cases != 2*27*1024 {
		t.Errorf("%d cases", cases)
	}
}

// TestProperties: many replicas and hosts behave like few, and the order in which they are seen
// does not matter.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := Input{Holders: map[string]string{}, Now: long.Add(time.Hour)}
		in.Changed = in.Now.Add(-time.Duration(rapid.IntRange(0, 40).Draw(t, "changed")) * time.Second)
		in.Moved = in.Now.Add(-time.Duration(rapid.IntRange(0, 4).Draw(t, "moved")) * time.Second)
		for i := range rapid.IntRange(0, 6).Draw(t, "replicas") {
			in.Replicas = append(in.Replicas, Replica{fmt.Sprint("r", i), rapid.IntRange(0, 3).Draw(t, "leaving") == 0})
		}
		for i := range rapid.IntRange(0, 40).Draw(t, "hosts") {
			h := fmt.Sprint("h", i)
			in.Hosts = append(in.Hosts, h)
			if by := rapid.IntRange(-1, 8).Draw(t, "holder"); by >= 0 {
				in.Holders[h] = fmt.Sprint("r", by)
			}
		}
		if fault := settles(in); fault != "" {
			t.Fatal(fault)
		}
		other := in
		other.Replicas = rapid.Permutation(in.Replicas).Draw(t, "replicas in another order")
		other.Hosts = rapid.Permutation(in.Hosts).Draw(t, "hosts in another order")
		if a, b := Decide(in), Decide(other); !reflect.DeepEqual(a, b) {
			t.Fatalf("of the same seen in another order another plan: %v, %v", a, b)
		}
	})
}
