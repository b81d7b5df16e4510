package images

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/schema"
)

// Files is where the records of pulls are kept; a host.Host has it.
type Files interface {
	ReadFile(ctx context.Context, path string, max int64) ([]byte, error)
	WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error
}

// records say with which credentials the images on the machine were pulled, so that
// a pod does not get an image that only another's secret could pull. An image that
// was not pulled by us is anybody's: whoever brought it to the machine let it in.
type records struct {
	files Files
	path  string
	turn  chan struct{} // of who reads or writes; holds one
	read  bool
	file  recordFile
	added map[string]time.Time // when this life of ours last wrote of an image, by ID
	ends  atomic.Uint64        // counts the pulls that are over and whose end nobody saw
	// frozen: the file is a newer Bowline's, and is not written.
	frozen bool
}

// recordFile is what is on the machine.
type recordFile struct {
	SchemaVersion int `json:"schemaVersion"`
	// Salt of the hashes of credentials.
	Salt string `json:"salt,omitempty"`
	// Lost: there was a record before this one that could not be read. Of an image that
	// is not among Images it is not known who was let in, so each pod pulls it itself.
	Lost bool `json:"lost,omitempty"`
	// Intents counts the pulls whose end has not been seen, by image name: the image
	// may be there, and nobody knows who was let in.
	Intents map[string]int `json:"intents,omitempty"`
	// Images by ID, and below by repository.
	Images map[string]map[string]access `json:"images,omitempty"`
	// left are those of the intents whose pulls are over and whose end nobody saw, by
	// image name; what is on the machine does not have them.
	left map[string][]pull
}

// access to an image of one repository. The zero value lets nobody in.
type access struct {
	// Everyone, where it was pulled without credentials or with the node's own.
	Everyone bool        `json:"everyone,omitempty"`
	Secrets  []secretID  `json:"secrets,omitempty"`
	Accounts []AccountID `json:"serviceAccounts,omitempty"`
}

// secretID is a pull secret whose credentials pulled an image.
type secretID struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Hash      string    `json:"hash"` // of the credentials in it
}

const (
	// schemaVersion of the file.
	schemaVersion = 1
	maxRecords    = 8 << 20
	// maxIntents are remembered of earlier lives. Where there are more, the record counts as
	// lost: every pod pulls what is not known.
	maxIntents = 1000
	// maxSecrets of one image are remembered, and as many accounts; who is not among
	// them pulls again.
	maxSecrets = 100
)

// damagedSuffix is of a copy of records that could not be read.
const damagedSuffix = ".damaged"

const lostRecords = "Failed to read the records of image pulls. Pods pull every image that is on the machine again, since it is not known " +
	"which were pulled with a secret. If every pod may use them all, delete the file and restart"

func newRecords(files Files, path string) *records {
	r := &records{files: files, path: path, turn: make(chan struct{}, 1), added: map[string]time.Time{}}
	r.turn <- struct{}{}
	return r
}

// locked runs f on the record as it is on the machine, and writes it if f says so.
func (r *records) locked(ctx context.Context, f func(*recordFile) (changed bool)) error {
	select {
	case <-r.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { r.turn <- struct{}{} }()
	if !r.read {
		file, err := r.load(ctx)
		if err != nil {
			return fmt.Errorf("read the records of image pulls: %w", err)
		}
		r.file, r.read = file, true
	}
	next := r.file.clone()
	if !f(&next) {
		return nil
	}
	if r.frozen {
		r.file = next
		return nil
	}
	next.SchemaVersion = schemaVersion
	data, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("write the records of image pulls: %w", err)
	}
	if err := r.files.WriteFile(ctx, r.path, data, 0o600); err != nil {
		return fmt.Errorf("write the records of image pulls: %w", err)
	}
	r.file = next
	return nil
}

func (r *records) load(ctx context.Context) (file recordFile, err error) {
	data, err := r.files.ReadFile(ctx, r.path, maxRecords)
	switch {
	case err == nil:
		err := schema.Decode(data, schemaVersion, &file)
		switch {
		case schema.Newer(err):
			file, r.frozen = recordFile{Lost: true}, true
			klog.FromContext(ctx).Error(err, lostRecords+". The file stays as it is", "path", r.path)
		case err != nil:
			file = recordFile{Lost: true}
			if err := r.files.WriteFile(ctx, r.path+damagedSuffix, data, 0o600); err != nil {
				return file, fmt.Errorf("set the damaged records aside: %w", err)
			}
			klog.FromContext(ctx).Error(err, lostRecords, "path", r.path, "kept", r.path+damagedSuffix)
		}
	case errors.Is(err, host.ErrTooLarge):
		file.Lost = true
		klog.FromContext(ctx).Error(err, lostRecords, "path", r.path)
	case !errors.Is(err, fs.ErrNotExist):
		return file, err
	}
	if file.Salt == "" {
		salt := make([]byte, 16)
		rand.Read(salt)
		file.Salt = hex.EncodeToString(salt)
	}
	// Pulls that a life of ours before this one did not see the end of: each counts as
	// one whose end nobody will see.
	if len(file.Intents) > maxIntents {
		file.Intents, file.Lost = nil, true
		klog.FromContext(ctx).Info("Too many pulls have no known end; pods pull every image that is not known", "path", r.path, "most", maxIntents)
	}
	file.left = make(map[string][]pull, len(file.Intents))
	for image := range file.Intents {
		file.Intents[image], file.left[image] = 1, []pull{{}}
	}
	return file, nil
}

func (f recordFile) clone() recordFile {
	f.Intents, f.left = maps.Clone(f.Intents), maps.Clone(f.left)
	images := make(map[string]map[string]access, len(f.Images))
	for id, by := range f.Images {
		images[id] = maps.Clone(by)
	}
	f.Images = images
	return f
}

// mustPull says whether a pod with these credentials may use an image that is there
// only after a pull of its own. verifies is asked whether that is to be looked into.
func (r *records) mustPull(ctx context.Context, verifies func(ours bool) bool, image, repository, id string, have []Credential) (must bool, err error) {
	known := false
	err = r.locked(ctx, func(f *recordFile) (changed bool) {
		known = true
		by, pulled := f.Images[id]
		if _, intended := f.Intents[image]; !verifies(pulled || intended || f.Lost) {
			return false
		}
		must = true
		a := by[repository]
		if a.Everyone {
			must = false
			return false
		}
		for _, c := range have {
			if c.secret == nil {
				continue
			}
			mine := c.secret.of(c.Auth, f)
			for _, o := range a.Secrets {
				same := o.UID == mine.UID && o.Namespace == mine.Namespace && o.Name == mine.Name
				if !same && o.Hash != mine.Hash {
					continue
				}
				must = false
				r.added[id] = time.Now()
				return f.add(id, repository, access{Secrets: []secretID{mine}})
			}
		}
		must = !a.holdsAccount(have)
		return false
	})
	if err != nil && known && !must {
		klog.FromContext(ctx).Info("That a pod may use an image is known, and could not be written down", "image", image, "err", err)
		return false, nil
	}
	return must, err
}

// pulled writes down who was let in: whoever has the credentials that were used, or
// everyone where there were none.
func (r *records) pulled(ctx context.Context, image, repository, id string, used *runtimeapi.AuthConfig, have []Credential) error {
	return r.locked(ctx, func(f *recordFile) bool {
		r.added[id] = time.Now()
		changed := f.add(id, repository, letIn(used, have, f))
		for range len(f.left[image]) { // the image is known by its ID from now on
			changed = f.done(image) || changed
		}
		delete(f.left, image)
		return f.done(image) || changed
	})
}

// prune forgets the images that were not on the machine at a time. One that was written of
// since may have come after that.
func (r *records) prune(ctx context.Context, ids []string, asOf time.Time) error {
	return r.locked(ctx, func(f *recordFile) (changed bool) {
		for id := range f.Images {
			if at, ours := r.added[id]; slices.Contains(ids, id) || ours && !at.Before(asOf) {
				continue
			}
			delete(f.Images, id)
			delete(r.added, id)
			changed = true
		}
		return changed
	})
}

// add merges access to an image, and reports whether it is more than before.
func (f *recordFile) add(id, repository string, more access) (changed bool) {
	a, ok := f.Images[id][repository]
	switch {
	case ok && a.Everyone:
		return false
	case more.Everyone:
		a, changed = more, true
	default:
		a.Secrets = slices.Clone(a.Secrets)
		changed = !ok
		changed = a.addAccounts(more.Accounts) || changed
		for _, s := range more.Secrets {
			at := slices.IndexFunc(a.Secrets, func(k secretID) bool { return k.UID == s.UID && k.Namespace == s.Namespace && k.Name == s.Name })
			switch {
			case at < 0 && len(a.Secrets) < maxSecrets:
				a.Secrets, changed = append(a.Secrets, s), true
			case at >= 0 && a.Secrets[at].Hash != s.Hash:
				a.Secrets[at], changed = s, true
			}
		}
	}
	if changed {
		if f.Images[id] == nil {
			f.Images[id] = map[string]access{}
		}
		f.Images[id][repository] = a
	}
	return changed
}

// hash of credentials, which cannot be told from it without the salt.
func (f *recordFile) hash(a *runtimeapi.AuthConfig) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %d:%s %d:%s", f.Salt, len(a.Username), a.Username, len(a.Password), a.Password)
	return hex.EncodeToString(h.Sum(nil))
}
