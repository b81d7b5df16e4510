package images

import (
	"context"
	"maps"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host/budget"
)

// An intent is on the machine for as long as a pull runs, or is over without anybody
// having seen its end. Each pull that begins adds one; pulled, failed, ended or seen take
// it off. An image whose name has an intent may be what a pull has brought, so it is
// nobody's but those whose credentials pulled it.

// pull is what is known of a pull apart from its end. The zero value is one of an earlier
// life of ours, of which nothing is.
type pull struct {
	// before is the ID of the image that was there when it began; empty: there was none.
	before string
	known  bool // before is
	open   bool // it has no credentials: what it brings is anybody's
	seq    uint64
}

// brought says whether an image that is there after a pull may have come by it, and may
// not be everybody's. What was there before is whose it was.
func (p pull) brought(id string) bool {
	return id != "" && !p.open && !(p.known && p.before == id)
}

// begin writes down that a pull of the image is about to begin.
func (r *records) begin(ctx context.Context, image string) error {
	return r.locked(ctx, func(f *recordFile) bool {
		if f.Intents == nil {
			f.Intents = map[string]int{}
		}
		f.Intents[image]++
		return true
	})
}

// failed writes down that a pull did not come to anything.
func (r *records) failed(ctx context.Context, image string) error {
	return r.locked(ctx, func(f *recordFile) bool { return f.done(image) })
}

// ended writes down that a pull was cut off, and the image that is there all the same;
// no ID: none is.
func (r *records) ended(ctx context.Context, image, repository string, p pull, id string) error {
	return r.locked(ctx, func(f *recordFile) bool { return r.end(f, image, repository, p, id) })
}

// end takes one pull off. What it may have brought lets nobody in who does not pull it.
func (r *records) end(f *recordFile, image, repository string, p pull, id string) (changed bool) {
	changed = f.done(image)
	if !p.brought(id) {
		return changed
	}
	r.added[id] = time.Now()
	return f.add(id, repository, access{}) || changed
}

// leave remembers that a pull is over and that its end is not known, or not written down.
func (r *records) leave(image string, p pull) {
	<-r.turn
	defer func() { r.turn <- struct{}{} }()
	p.seq = r.ends.Add(1)
	if r.file.left == nil {
		r.file.left = map[string][]pull{}
	}
	r.file.left[image] = append(slices.Clip(r.file.left[image]), p)
}

// look is to be asked for before a look at an image: seen believes the look about the
// pulls that were over by then.
func (r *records) look() uint64 {
	if r == nil {
		return 0
	}
	return r.ends.Load()
}

// seen writes down what a look tells of the pulls whose end nobody saw: id is of the image
// that is there; empty: none is.
func (r *records) seen(ctx context.Context, look uint64, image, repository, id string) error {
	if r == nil {
		return nil
	}
	return r.locked(ctx, func(f *recordFile) (changed bool) {
		var later []pull
		for _, p := range f.left[image] {
			if p.seq > look {
				later = append(later, p)
				continue
			}
			changed = r.end(f, image, repository, p, id) || changed
		}
		if delete(f.left, image); len(later) > 0 {
			f.left[image] = later
		}
		return changed
	})
}

// unseen are the names of images whose pulls have ends that nobody saw.
func (r *records) unseen(ctx context.Context) (names []string, err error) {
	err = r.locked(ctx, func(f *recordFile) bool {
		names = slices.Sorted(maps.Keys(f.left))
		return false
	})
	return names, err
}

// done takes one pull off; the last one takes the intent with it.
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

// begin writes down that a pull is about to begin, and finds out which image is there
// until then, where nobody has looked yet and that may matter.
func (m *Manager) begin(ctx context.Context, image *runtimeapi.ImageSpec, rec *recorded) error {
	if m.records == nil {
		return nil
	}
	if rec.open = len(rec.have) == 0; rec.open || rec.known {
		return m.records.begin(ctx, rec.image)
	}
	// Side by side: over SSH each is a round trip.
	before := make(chan pull, 1)
	budget.From(ctx).Go("look at an image", func() {
		var p pull // nothing, if it cannot be seen
		defer func() { before <- p }()
		if found, err := m.cfg.Runtime.ImageStatus(ctx, image); err == nil {
			p.before, p.known = found.GetId(), true
		}
	})
	err := m.records.begin(ctx, rec.image)
	rec.pull = <-before
	return err
}

// mostEnds of pulls are looked for at once.
const mostEnds = 50

// Prune forgets who was let in to images that are not on the machine any more: ids were
// there at a time. It looks for what came of the pulls whose end nobody saw, as the pods
// that they were for may be gone.
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
			continue // none that a pod had
		}
		look := m.records.look()
		found, err := m.cfg.Runtime.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: withDefaultTag(name, ref)})
		if err == nil {
			err = m.records.seen(ctx, look, name, ref.Repository(), found.GetId())
		}
		if err != nil {
			klog.FromContext(ctx).V(1).Info("The end of a pull is not known yet", "image", name, "err", err)
		}
	}
	return m.records.prune(ctx, ids, asOf)
}
