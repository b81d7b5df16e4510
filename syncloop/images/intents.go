package images

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host/budget"
)

// An intent is in the file on the host while a pull runs, or after it has finished with an unknown
// outcome. begin adds one per pull; pulled, failed, ended or seen removes it. An image whose name
// has an intent may come from such a pull, so only those whose credentials pulled it may use it.

// pull describes a pull, except for its outcome. The zero value is a pull by an earlier process,
// without any information.
type pull struct {
	// before is the ID of the image that was present when the pull began; empty: none.
	before string
	known  bool // before is known
	open   bool // it has no credentials, so every pod may use what it brings
	seq    uint64
	flight *flight // nil: unknown, or none began
	// inFlight is the credential of have that the runtime did not answer; nil: none, or an image
	// that came by other means would be open to verified credentials only.
	inFlight *runtimeapi.AuthConfig
	have     []Credential
}

// brought reports whether an image present after the pull may come from it and may not be open to
// everyone. An image that was present before keeps its access.
func (p pull) brought(id string) bool {
	return id != "" && !p.open && !(p.known && p.before == id)
}

// begin records that a pull of the image is about to begin.
func (r *records) begin(ctx context.Context, image string) error {
	return r.locked(ctx, func(f *recordFile) bool {
		if f.Intents == nil {
			f.Intents = map[string]int{}
		}
		f.Intents[image]++
		return true
	})
}

// failed records that a pull failed.
func (r *records) failed(ctx context.Context, image string, p pull) error {
	return r.locked(ctx, func(f *recordFile) bool { return f.finish(image, p) })
}

// ended records that a pull was cut off, and the ID of the image that is present nevertheless;
// empty: none.
func (r *records) ended(ctx context.Context, image, repository, id string, p pull) error {
	return r.locked(ctx, func(f *recordFile) bool { return r.end(f, image, repository, id, []pull{p}) })
}

// end removes the intents of pulls. The image that they may have brought is recorded as open to the
// credentials in flight if it can be no one else's, and else to no one, so that each pod pulls it.
func (r *records) end(f *recordFile, image, repository, id string, ended []pull) (changed bool) {
	for _, p := range ended {
		changed = f.finish(image, p) || changed
	}
	i := slices.IndexFunc(ended, func(p pull) bool { return p.brought(id) })
	if i < 0 {
		return changed
	}
	var gained access
	p := ended[i]
	others := slices.ContainsFunc(ended, func(o pull) bool { return o.flight != p.flight })
	if !others && p.known && p.inFlight != nil && len(f.Images[id]) == 0 && f.alone(image, repository, p.flight) {
		// Either this pull brought the image, with this credential, or it came by other means and is
		// open to all.
		gained = letIn(p.inFlight, p.have, f)
	}
	r.added[id] = time.Now()
	return f.add(id, repository, gained) || changed
}

// alone reports whether no pull outside the flight may have brought the image of this name.
func (f *recordFile) alone(image, repository string, of *flight) bool {
	byDigest := strings.Contains(image, "@") // a runtime may find it under any repository
	for name, n := range f.Intents {
		if name == image {
			n -= int(of.intents.Load())
		} else if ref, err := Parse(name); err == nil && ref.Repository != repository && !byDigest {
			continue
		}
		if n > 0 {
			return false
		}
	}
	return true
}

// leave remembers that a pull has finished, but its outcome is unknown or could not be written.
func (r *records) leave(image string, p pull) {
	<-r.turn
	defer func() { r.turn <- struct{}{} }()
	p.seq = r.ends.Add(1)
	if r.file.left == nil {
		r.file.left = map[string][]pull{}
	}
	r.file.left[image] = append(slices.Clip(r.file.left[image]), p)
}

// look must be called before a look at an image: seen applies the look only to pulls that had
// finished by then.
func (r *records) look() uint64 {
	if r == nil {
		return 0
	}
	return r.ends.Load()
}

// seen applies a look to the pulls with an unknown outcome. id is that of the image that is
// present; empty: none.
func (r *records) seen(ctx context.Context, look uint64, image, repository, id string) error {
	if r == nil {
		return nil
	}
	return r.locked(ctx, func(f *recordFile) (changed bool) {
		var ended, later []pull
		for _, p := range f.left[image] {
			if p.seq > look {
				later = append(later, p)
			} else {
				ended = append(ended, p)
			}
		}
		changed = r.end(f, image, repository, id, ended)
		if delete(f.left, image); len(later) > 0 {
			f.left[image] = later
		}
		return changed
	})
}

// unseen returns the names of images with pulls of unknown outcome.
func (r *records) unseen(ctx context.Context) (names []string, err error) {
	err = r.locked(ctx, func(f *recordFile) bool {
		names = slices.Sorted(maps.Keys(f.left))
		return false
	})
	return names, err
}

// finish removes a pull's intent.
func (f *recordFile) finish(image string, p pull) bool {
	if p.flight != nil {
		p.flight.intents.Add(-1)
	}
	return f.done(image)
}

// done takes one off the image's intents.
func (f *recordFile) done(image string) bool {
	n, ok := f.Intents[image]
	if !ok {
		return false
	}
	if n <= 1 {
		delete(f.Intents, image)
	} else {
		f.Intents[image] = n - 1
	}
	return true
}

// begin records that a pull is about to begin. If no look has happened yet and it may matter, it
// also finds out which image is present before the pull.
func (m *Manager) begin(ctx context.Context, image *runtimeapi.ImageSpec, rec *recorded) error {
	if m.records == nil {
		return nil
	}
	if rec.open = len(rec.have) == 0; rec.open || rec.known {
		return m.records.begin(ctx, rec.image)
	}
	// In parallel, as each is a round trip over SSH.
	before := make(chan pull, 1)
	budget.From(ctx).Go("look at an image", func() {
		var p pull // stays zero if the image cannot be seen
		defer func() { before <- p }()
		if found, err := m.cfg.Runtime.ImageStatus(ctx, image); err == nil {
			p.before, p.known = found.GetId(), true
		}
	})
	err := m.records.begin(ctx, rec.image)
	rec.pull = <-before
	return err
}

// mostEnds bounds how many pulls Prune looks up at once.
const mostEnds = 50

// Prune forgets the access to images that are no longer on the host; ids were present at asOf. It
// also looks up the pulls with an unknown outcome, as the pods that needed them may be gone.
func (m *Manager) Prune(ctx context.Context, ids []string, asOf time.Time) error {
	if m.records == nil {
		return nil
	}
	names, err := m.records.unseen(ctx)
	if err != nil {
		return err
	}
	for _, name := range names[:min(len(names), mostEnds)] {
		ref, err := Parse(name)
		if err != nil {
			continue // not a name from a pod
		}
		look := m.records.look()
		found, err := m.cfg.Runtime.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: withDefaultTag(name, ref)})
		if err == nil {
			err = m.records.seen(ctx, look, name, ref.Repository, found.GetId())
		}
		if err != nil {
			klog.FromContext(ctx).V(1).Info("Failed to look up the result of an image pull", "image", name, "err", err)
		}
	}
	return m.records.prune(ctx, ids, asOf)
}
