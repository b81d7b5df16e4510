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
	"path"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/schema"
)

// RecordFile is the file on the host, below the node's root directory, that records which pull
// credentials gave access to which image.
func RecordFile(root string) string { return path.Join(root, "bowline", "pulls.json") }

// Files stores the records of pulls; host.Host implements it.
type Files interface {
	ReadFile(ctx context.Context, path string, max int64) ([]byte, error)
	WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error
}

// records say with which credentials the images on the host were pulled, so that a pod does not get
// an image that only another pod's secret could pull. By default an image that we did not pull
// is open to every pod; see Verification.
type records struct {
	files Files
	path  string
	turn  chan struct{} // holds one token; the goroutine that took it reads or writes
	read  bool
	file  recordFile
	added map[string]time.Time // when this process last recorded an image, by ID
	ends  atomic.Uint64        // counts finished pulls with an unknown outcome
	// frozen is set if the file is of a newer Bowline, or may be: it is too large to read. It is then
	// not written.
	frozen bool
}

// recordFile is the file on the host.
type recordFile struct {
	SchemaVersion int `json:"schemaVersion"`
	// Salt is hashed with the credentials.
	Salt string `json:"salt,omitempty"`
	// Lost is set if an earlier file could not be read. Each pod must then pull an image that is
	// not among Images, as it is unknown which pods may use it.
	Lost bool `json:"lost,omitempty"`
	// Intents counts the pulls with an unknown outcome, by image name: the image may be present,
	// and it is unknown which pods may use it.
	Intents map[string]int `json:"intents,omitempty"`
	// Images are by ID, then by repository.
	Images map[string]map[string]access `json:"images,omitempty"`
	// left are the intents whose pulls have finished with an unknown outcome, by image name. They
	// are not in the file.
	left map[string][]pull
}

// access says who may use an image of one repository. The zero value is no one.
type access struct {
	// Everyone is set if it was pulled without credentials or with the node's own.
	Everyone bool        `json:"everyone,omitempty"`
	Secrets  []secretID  `json:"secrets,omitempty"`
	Accounts []AccountID `json:"serviceAccounts,omitempty"`
}

// secretID is a pull secret whose credentials pulled an image.
type secretID struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Hash      string    `json:"hash"` // of its credentials
}

const (
	// schemaVersion is the version of the file.
	schemaVersion = 1
	maxRecords    = 8 << 20
	// maxIntents bounds the intents of earlier processes. Beyond it the record counts as lost:
	// every pod pulls images that are not recorded.
	maxIntents = 1000
	// maxSecrets bounds the secrets that are recorded per image, and the accounts; a pod with
	// another one pulls again.
	maxSecrets = 100
)

// damagedSuffix marks the copy of a file that could not be read.
const damagedSuffix = ".damaged"

// lostEffect is what follows from unreadable records: Bowline does not know which images were pulled
// with a secret.
const lostEffect = "pods pull every present image again; if every pod may use them all, delete the file and restart"

func newRecords(files Files, path string) *records {
	r := &records{files: files, path: path, turn: make(chan struct{}, 1), added: map[string]time.Time{}}
	r.turn <- struct{}{}
	return r
}

// locked calls f with the records, which it reads first if needed, and writes them if f returns
// true.
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
			klog.FromContext(ctx).Error(err, "Failed to read image pull records", "path", r.path, "effect", lostEffect, "reset", false)
		case err != nil:
			file = recordFile{Lost: true}
			if err := r.files.WriteFile(ctx, r.path+damagedSuffix, data, 0o600); err != nil {
				return file, fmt.Errorf("set the damaged records aside: %w", err)
			}
			klog.FromContext(ctx).Error(err, "Failed to read image pull records", "path", r.path, "effect", lostEffect, "kept", r.path+damagedSuffix)
		}
	case errors.Is(err, host.ErrTooLarge):
		file.Lost, r.frozen = true, true
		klog.FromContext(ctx).Error(err, "Failed to read image pull records; keeping the file", "path", r.path, "effect", lostEffect)
	case !errors.Is(err, fs.ErrNotExist):
		return file, err
	}
	if file.Salt == "" {
		salt := make([]byte, 16)
		rand.Read(salt)
		file.Salt = hex.EncodeToString(salt)
	}
	// Earlier processes did not see the outcome of these pulls, and no process will.
	if len(file.Intents) > maxIntents {
		file.Intents, file.Lost = nil, true
		klog.FromContext(ctx).Error(nil, "Dropped image pull records: too many pulls without a result", "path", r.path, "effect", "pods pull every image without a record", "most", maxIntents)
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

// mustPull reports whether a pod with these credentials may use a present image only after a pull
// of its own. verifies decides whether that needs verification.
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
		klog.FromContext(ctx).Error(err, "Failed to record that a pod may use an image", "image", image)
		return false, nil
	}
	return must, err
}

// pulled records who may use the image: those with the credentials that were used, or everyone if
// none were.
func (r *records) pulled(ctx context.Context, image, repository, id string, used *runtimeapi.AuthConfig, have []Credential, p pull) error {
	return r.locked(ctx, func(f *recordFile) bool {
		r.added[id] = time.Now()
		changed := f.add(id, repository, letIn(used, have, f))
		for _, l := range f.left[image] { // their outcome is covered by the image's ID from now on
			changed = f.finish(image, l) || changed
		}
		delete(f.left, image)
		return f.finish(image, p) || changed
	})
}

// prune forgets the images that were not on the host at asOf. An image recorded since then may have
// come later, and stays.
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

// add merges access to an image, and reports whether anything changed.
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

// hash hashes credentials with the salt.
func (f *recordFile) hash(a *runtimeapi.AuthConfig) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %d:%s %d:%s", f.Salt, len(a.Username), a.Username, len(a.Password), a.Password)
	return hex.EncodeToString(h.Sum(nil))
}
