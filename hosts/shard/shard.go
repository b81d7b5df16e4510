// Package shard decides which replica of Bowline drives which host: purely, so that
// every replica comes to the same answer of what all of them see.
//
//   - A host that no living replica has goes at once to the one with the fewest.
//   - A replica that is leaving gives its hosts away, one at a time, and takes none.
//   - The rest is balanced to within one host, by the fewest moves there are: one at a
//     time, Pause apart, and none within Settle of a change of the replicas, as one that
//     has gone is often there again, or another in its place.
package shard

import (
	"cmp"
	"slices"
	"time"
)

const (
	// Settle is how long the replicas have to be the same ones before hosts move only
	// for the balance.
	Settle = 30 * time.Second
	// Pause is between two such moves: the host that moved is found by its new driver
	// before the next one is let go of.
	Pause = 2 * time.Second
)

// Replica is a living one.
type Replica struct {
	Name string
	// Leaving: it takes no more hosts and gives away those it has.
	Leaving bool
}

func (r Replica) String() string {
	if r.Leaving {
		return r.Name + " (leaving)"
	}
	return r.Name
}

// Input is what is seen of replicas and hosts.
type Input struct {
	Replicas []Replica         // that live, each once, in any order
	Hosts    []string          // that there are, each once, in any order
	Holders  map[string]string // host to the replica that has it, living or not
	Changed  time.Time         // when Replicas were last seen to change
	Moved    time.Time         // when a host was last seen to change hands
	Now      time.Time
}

// Reason of a move.
type Reason string

// The reasons there are.
const (
	Unheld  Reason = "Unheld"  // nobody has the host, or nobody who lives: who is to have it takes it
	Leaving Reason = "Leaving" // who has it is leaving, and gives it away
	Balance Reason = "Balance" // who has it has more than another, and gives it away
)

// Move of a host from one replica to another. From is empty where nobody has it, and
// names a dead one where that had it.
type Move struct {
	Host, From, To string
	Reason         Reason
}

// Plan is what is to be done.
type Plan struct {
	Moves []Move // at most one of each host
	// WakeAt is when the answer changes though nothing else does; zero: never.
	WakeAt time.Time
}

// Decide says which hosts are to move. Hosts that nobody can take stay as they are.
func Decide(in Input) Plan {
	counts := map[string]int{} // of those that take hosts
	leaving := map[string]bool{}
	for _, r := range in.Replicas {
		if r.Leaving {
			leaving[r.Name] = true
		} else {
			counts[r.Name] = 0
		}
	}
	if len(counts) == 0 {
		return Plan{}
	}
	hosts := slices.Sorted(slices.Values(in.Hosts))
	var unheld, given []string
	first := map[string]string{} // the host that each would give away
	for _, h := range hosts {
		holder := in.Holders[h]
		_, takes := counts[holder]
		switch {
		case takes:
			counts[holder]++
		case leaving[holder] && first[holder] == "":
			given = append(given, h)
		case leaving[holder]:
			continue // its turn comes
		default:
			unheld = append(unheld, h)
			continue
		}
		if first[holder] == "" {
			first[holder] = h
		}
	}
	var p Plan
	move := func(h string, why Reason) {
		to := fewest(counts)
		counts[to]++
		p.Moves = append(p.Moves, Move{h, in.Holders[h], to, why})
	}
	for _, h := range unheld {
		move(h, Unheld)
	}
	for _, h := range given {
		move(h, Leaving)
	}
	to, from := fewest(counts), most(counts)
	if len(p.Moves) > 0 || counts[from]-counts[to] <= 1 {
		return p
	}
	at := in.Changed.Add(Settle)
	if paused := in.Moved.Add(Pause); paused.After(at) {
		at = paused
	}
	if at.After(in.Now) {
		p.WakeAt = at
		return p
	}
	move(first[from], Balance)
	return p
}

// fewest is the replica with the fewest hosts, most the one with the most; of equals
// the first by name.
func fewest(counts map[string]int) string {
	return best(counts, func(a, b int) int { return cmp.Compare(a, b) })
}

func most(counts map[string]int) string {
	return best(counts, func(a, b int) int { return cmp.Compare(b, a) })
}

func best(counts map[string]int, compare func(a, b int) int) string {
	names := make([]string, 0, len(counts))
	for name := range counts {
		names = append(names, name)
	}
	return slices.MinFunc(names, func(a, b string) int {
		return cmp.Or(compare(counts[a], counts[b]), cmp.Compare(a, b))
	})
}
