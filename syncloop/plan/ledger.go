package plan

import (
	"iter"
	"maps"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/pod"
)

// Backoff returns the back-off of a key: a name of Names, or the IDKey of a container or sandbox.
func (l *Ledger) Backoff(key string) Backoff {
	id, ok := strings.CutPrefix(key, idPrefix)
	if !ok {
		return l.Names[key].Backoff
	}
	if b := l.Containers[id].Backoff; b != (Backoff{}) {
		return b
	}
	return l.Sandboxes[id].Backoff
}

// Backoffs iterates over all back-offs, by their keys.
func (l *Ledger) Backoffs() iter.Seq2[string, Backoff] {
	return func(yield func(string, Backoff) bool) {
		for name, r := range l.Names {
			if r.Backoff != (Backoff{}) && !yield(name, r.Backoff) {
				return
			}
		}
		for id, r := range l.Containers {
			if r.Backoff != (Backoff{}) && !yield(IDKey(id), r.Backoff) {
				return
			}
		}
		for id, r := range l.Sandboxes {
			if r.Backoff != (Backoff{}) && !yield(IDKey(id), r.Backoff) {
				return
			}
		}
	}
}

// Sizes returns, by container ID, the results of in-place resizes.
func (l *Ledger) Sizes() map[string]pod.Size {
	out := map[string]pod.Size{}
	for id, r := range l.Containers {
		if r.Size != nil {
			out[id] = *r.Size
		}
	}
	return out
}

// Again returns the IDs of containers that were stopped to be started again.
func (l *Ledger) Again() map[string]bool {
	out := map[string]bool{}
	for id, r := range l.Containers {
		if r.Again {
			out[id] = true
		}
	}
	return out
}

// Resized returns the Ledger with these results of earlier resizes: the sizes of containers and the
// cgroups of sandboxes, by ID.
func Resized(l Ledger, sized map[string]pod.Size, cgroups map[string]Cgroup) Ledger {
	b := cowLedger{Ledger: l}
	for id, s := range sized {
		b.sized(id, s)
	}
	for id, c := range cgroups {
		b.cgroup(id, c)
	}
	return b.Ledger
}

// Successor is the first Ledger of the next life of a static pod: attempts are the smallest attempts
// of its containers, by name.
func Successor(attempts map[string]uint32) Ledger {
	b := cowLedger{}
	for name, n := range attempts {
		b.attempts(name, n)
	}
	return b.Ledger
}

// ResizeChanged returns the Ledger after the allocation has changed: a resize that failed is not
// wanted any more.
func ResizeChanged(l Ledger) Ledger {
	if l.Backoff(ResizeKey).Of != OpResize {
		return l
	}
	b := cowLedger{Ledger: l}
	b.clearBackoff(ResizeKey)
	return b.Ledger
}

// ContentChanged ends the pauses of what waits for a ConfigMap or Secret, because one has changed.
func ContentChanged(l Ledger) Ledger {
	b := cowLedger{Ledger: l}
	for key, v := range l.Names {
		if key == VolumesKey || v.Backoff.Reason == ReasonConfig {
			v.Backoff.Until = time.Time{}
			b.backoff(key, v.Backoff)
		}
	}
	return b.Ledger
}

// cowLedger is a Ledger whose maps are each copied on first write. The caller's Ledger stays unchanged,
// and a decision that writes nothing allocates nothing.
type cowLedger struct {
	Ledger
	owned [ledgerMaps]bool
}

// Indices into cowLedger.owned, one for each map of Ledger.
const (
	ofNames = iota
	ofContainers
	ofSandboxes
	ledgerMaps
)

// edit changes one record of map m, whose index in cowLedger.owned is i. A record that becomes the zero
// value is deleted.
func edit[V comparable](b *cowLedger, i int, m *map[string]V, key string, change func(*V)) {
	had := (*m)[key]
	next := had
	change(&next)
	if next == had {
		return
	}
	if !b.owned[i] {
		b.owned[i] = true
		*m = maps.Clone(*m)
		if *m == nil {
			*m = map[string]V{}
		}
	}
	var none V
	if next == none {
		delete(*m, key)
		return
	}
	(*m)[key] = next
}

func (b *cowLedger) name(name string, change func(*NameRecord)) {
	edit(b, ofNames, &b.Names, name, change)
}

func (b *cowLedger) container(id string, change func(*ContainerRecord)) {
	edit(b, ofContainers, &b.Containers, id, change)
}

func (b *cowLedger) sandbox(id string, change func(*SandboxRecord)) {
	edit(b, ofSandboxes, &b.Sandboxes, id, change)
}

// backoff sets the back-off of a key. v.Of says whether an IDKey is that of a sandbox.
func (b *cowLedger) backoff(key string, v Backoff) {
	id, ok := strings.CutPrefix(key, idPrefix)
	switch {
	case !ok:
		b.name(key, func(r *NameRecord) { r.Backoff = v })
	case v.Of == OpStopSandbox || v.Of == OpRemoveSandbox:
		b.sandbox(id, func(r *SandboxRecord) { r.Backoff = v })
	default:
		b.container(id, func(r *ContainerRecord) { r.Backoff = v })
	}
}

func (b *cowLedger) clearBackoff(key string) {
	id, ok := strings.CutPrefix(key, idPrefix)
	if !ok {
		b.name(key, func(r *NameRecord) { r.Backoff = Backoff{} })
		return
	}
	b.container(id, func(r *ContainerRecord) { r.Backoff = Backoff{} })
	b.sandbox(id, func(r *SandboxRecord) { r.Backoff = Backoff{} })
}

func (b *cowLedger) hooked(id string, h HookState) {
	b.container(id, func(r *ContainerRecord) { r.Hook = h })
}

func (b *cowLedger) because(id string, why Stop) {
	b.container(id, func(r *ContainerRecord) { r.Why = why })
}

func (b *cowLedger) sized(id string, s pod.Size) {
	b.container(id, func(r *ContainerRecord) { r.Size = &s })
}

func (b *cowLedger) cgroup(id string, c Cgroup) {
	b.sandbox(id, func(r *SandboxRecord) { r.Cgroup = &c })
}

func (b *cowLedger) pulled(name string, present bool) {
	b.name(name, func(r *NameRecord) { r.Pulled = present })
}

func (b *cowLedger) crashes(name string, n uint32) {
	b.name(name, func(r *NameRecord) { r.Crashes = n })
}

func (b *cowLedger) attempts(name string, n uint32) {
	b.name(name, func(r *NameRecord) { r.Attempt = n })
}

// prune forgets containers and sandboxes that the runtime no longer has. It is called only with an
// observation newer than the last mutation, so whatever is missing is really gone.
func (b *cowLedger) prune(o *pod.Observed) {
	for id, r := range b.Containers {
		switch c := containerOf(o, id); {
		case c == nil:
			b.container(id, func(r *ContainerRecord) { *r = ContainerRecord{} })
		case r.Backoff.Of == OpStop && !live(c):
			b.container(id, func(r *ContainerRecord) { r.Backoff = Backoff{} })
		}
	}
	for id := range b.Sandboxes {
		if !hasSandbox(o, id) {
			b.sandbox(id, func(r *SandboxRecord) { *r = SandboxRecord{} })
		}
	}
}

func containerOf(o *pod.Observed, id string) *pod.Container {
	for i := range o.Containers {
		if o.Containers[i].ID == id {
			return &o.Containers[i]
		}
	}
	return nil
}

func hasSandbox(o *pod.Observed, id string) bool {
	for i := range o.Sandboxes {
		if o.Sandboxes[i].ID == id {
			return true
		}
	}
	return false
}
