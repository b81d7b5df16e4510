// Package shard decides which replica of Bowline manages which host. The package is pure: every
// replica that sees the same input comes to the same answer.
//
//   - A host that no living replica holds goes at once to the replica with the fewest.
//   - A replica that is leaving gives its hosts away, one at a time, and takes none.
//   - The rest is balanced to within one host, by the fewest possible moves: one at a time, Pause
//     apart, and none within Settle of a change of the replicas, because a replica that has gone
//     often returns, or is replaced.
package shard

import (
	"cmp"
	"slices"
	"time"
)

const (
	// Settle is how long the set of replicas must be unchanged before hosts move only for balance.
	Settle = 30 * time.Second
	// Pause is between two such moves, so that the new driver has the host before the next one is
	// let go.
	Pause = 2 * time.Second
)

// Replica is a living replica.
type Replica struct {
	Name string
	// Leaving: it takes no more hosts and gives away the ones that it holds.
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
	Replicas []Replica         // living, each once, in any order
	Hosts    []string          // all, each once, in any order
	Holders  map[string]string // host to the replica that holds it, living or not
	Changed  time.Time         // when Replicas last changed
	Moved    time.Time         // when a host last changed its holder
	Now      time.Time
}

// Reason of a Move.
type Reason string

// The Reasons.
const (
	Unheld  Reason = "Unheld"  // no living replica holds the host: the new holder takes it
	Leaving Reason = "Leaving" // the holder is leaving, and gives it away
	Balance Reason = "Balance" // the holder has more hosts than another replica, and gives it away
)

// Move of a host from one replica to another. From is empty if the host had no holder, and may name
// a dead replica.
type Move struct {
	Host, From, To string
	Reason         Reason
}

// Plan is the result of Decide.
type Plan struct {
	Moves []Move // at most one per host
	// WakeAt is when the answer changes though the input does not; zero: never.
	WakeAt time.Time
}

// Decide decides which hosts move. Hosts that no replica can take stay as they are.
func Decide(in Input) Plan {
	counts := map[string]int{} // of the replicas that take hosts
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
	first := map[string]string{} // the host that each replica would give away
	for _, h := range hosts {
		holder := in.Holders[h]
		_, takes := counts[holder]
		switch {
		case takes:
			counts[holder]++
		case leaving[holder] && first[holder] == "":
			given = append(given, h)
		case leaving[holder]:
			continue // later
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

// fewest is the replica with the fewest hosts, most the one with the most. Of equals, the first by
// name wins.
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
