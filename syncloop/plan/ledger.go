package plan

import (
	"maps"
	"time"

	"github.com/bowline-k8s/bowline/pod"
)

// book is a Ledger that is copied map by map when first written: the caller's
// stays as it was, and a decision that remembers nothing new allocates nothing.
type book struct {
	Ledger
	owned [ledgerMaps]bool
}

// Indices into book.owned, one for each map of Ledger.
const (
	ofBackoff = iota
	ofHooked
	ofStopBegan
	ofStopBy
	ofStops
	ofPreStopped
	ofWhy
	ofAgain
	ofPulled
	ofCrashes
	ofAttempts
	ofStopped
	ofSized
	ofCgroups
	ledgerMaps
)

// set writes one entry of the map m, which is the book's map number i.
func set[K comparable, V any](b *book, i int, m *map[K]V, k K, v V) {
	own(b, i, m)
	(*m)[k] = v
}

// drop removes one entry if it is there.
func drop[K comparable, V any](b *book, i int, m *map[K]V, k K) {
	if _, ok := (*m)[k]; !ok {
		return
	}
	own(b, i, m)
	delete(*m, k)
}

func own[K comparable, V any](b *book, i int, m *map[K]V) {
	if b.owned[i] {
		return
	}
	b.owned[i] = true
	if *m == nil {
		*m = map[K]V{}
		return
	}
	*m = maps.Clone(*m)
}

func (b *book) backoff(key string, v Backoff)    { set(b, ofBackoff, &b.Backoff, key, v) }
func (b *book) clearBackoff(key string)          { drop(b, ofBackoff, &b.Backoff, key) }
func (b *book) hooked(id string, done bool)      { set(b, ofHooked, &b.Hooked, id, done) }
func (b *book) stopBegan(id string, t time.Time) { set(b, ofStopBegan, &b.StopBegan, id, t) }
func (b *book) stopBy(id string, t time.Time)    { set(b, ofStopBy, &b.StopBy, id, t) }
func (b *book) stops(id string)                  { set(b, ofStops, &b.Stops, id, b.Stops[id]+1) }
func (b *book) preStopped(id string)             { set(b, ofPreStopped, &b.PreStopped, id, true) }
func (b *book) because(id string, why Stop)      { set(b, ofWhy, &b.Why, id, why) }
func (b *book) again(id string)                  { set(b, ofAgain, &b.Again, id, true) }
func (b *book) pulled(name string)               { set(b, ofPulled, &b.Pulled, name, true) }
func (b *book) notPulled(name string)            { drop(b, ofPulled, &b.Pulled, name) }
func (b *book) crashes(name string, n uint32)    { set(b, ofCrashes, &b.Crashes, name, n) }
func (b *book) noCrashes(name string)            { drop(b, ofCrashes, &b.Crashes, name) }
func (b *book) attempts(name string, n uint32)   { set(b, ofAttempts, &b.Attempts, name, n) }
func (b *book) stopped(id string)                { set(b, ofStopped, &b.Stopped, id, true) }
func (b *book) sized(id string, s pod.Size)      { set(b, ofSized, &b.Sized, id, s) }
func (b *book) cgroup(id string, c Cgroup)       { set(b, ofCgroups, &b.Cgroups, id, c) }

// prune forgets containers and sandboxes that the runtime no longer has. Called
// only with an observation newer than the last mutation, so that what is missing
// is gone and not merely unseen.
func (b *book) prune(o *pod.Observed) {
	pruneIDs(b, ofHooked, &b.Hooked, o)
	pruneIDs(b, ofStopBegan, &b.StopBegan, o)
	pruneIDs(b, ofStopBy, &b.StopBy, o)
	pruneIDs(b, ofStops, &b.Stops, o)
	pruneIDs(b, ofPreStopped, &b.PreStopped, o)
	pruneIDs(b, ofWhy, &b.Why, o)
	pruneIDs(b, ofAgain, &b.Again, o)
	pruneIDs(b, ofStopped, &b.Stopped, o)
	pruneIDs(b, ofSized, &b.Sized, o)
	pruneIDs(b, ofCgroups, &b.Cgroups, o)
	prefix := IDKey("")
	for k, v := range b.Backoff {
		if len(k) <= len(prefix) || k[:len(prefix)] != prefix {
			continue
		}
		if id := k[len(prefix):]; !known(o, id) || v.Of == OpStop && !liveID(o, id) {
			b.clearBackoff(k)
		}
	}
}

func liveID(o *pod.Observed, id string) bool {
	for i := range o.Containers {
		if o.Containers[i].ID == id {
			return live(&o.Containers[i])
		}
	}
	return false
}

func pruneIDs[V any](b *book, i int, m *map[string]V, o *pod.Observed) {
	for id := range *m {
		if !known(o, id) {
			drop(b, i, m, id)
		}
	}
}

func known(o *pod.Observed, id string) bool {
	for i := range o.Containers {
		if o.Containers[i].ID == id {
			return true
		}
	}
	for i := range o.Sandboxes {
		if o.Sandboxes[i].ID == id {
			return true
		}
	}
	return false
}
