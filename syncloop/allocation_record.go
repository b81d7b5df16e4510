package syncloop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/schema"
	"github.com/bowline-k8s/bowline/pod"
)

// resizeRecord is a file on the machine with what the runtime cannot hold: what the
// pods have that were resized. It is written before a resize begins and when it is
// done. A pod that was never resized is not in it; neither is a resize that was
// accepted and did not begin, which is judged anew.
type resizeRecord struct {
	SchemaVersion int `json:"schemaVersion"`

	Pods map[types.UID]resizedPod `json:"pods"`
}

// resizedPod is one pod of the record.
type resizedPod struct {
	// Sandbox that this is true of: a later one is made for what the pod has then,
	// and says so itself.
	Sandbox    string         `json:"sandbox"`
	Allocation pod.Allocation `json:"allocation"`
	// Was is what the pod had before, while the resize is under way.
	Was *pod.Allocation `json:"was,omitempty"`
	// Sized are the containers, by ID, that have another size than they were made with.
	Sized map[string]pod.Size `json:"sized,omitempty"`
}

// recordFiles are what the record needs of the machine.
type recordFiles interface {
	ReadFile(ctx context.Context, path string, max int64) ([]byte, error)
	WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error
}

// ResizeRecord is the record of what pods were resized to, below the root directory.
func ResizeRecord(root string) string { return path.Join(root, "bowline", "resizes.json") }

const (
	// resizeSchema is the version of the record's schema.
	resizeSchema = 1

	maxRecord   = 8 << 20 // bytes; more is neither read nor written
	recordPause = time.Second
)

// recordKeeper writes the record; one write is under way at a time, and writes all.
type recordKeeper struct {
	files recordFiles
	path  string
	mu    sync.Mutex
}

// load reads the record, and tries until it has: what the pods were given before us
// is not known until then.
func (k *recordKeeper) load(ctx context.Context, into *allocations, loaded func()) {
	for told := false; ; {
		r, err := k.read(ctx)
		if err == nil {
			into.mu.Lock()
			into.record, into.loaded = r, true
			into.mu.Unlock()
			loaded()
			return
		}
		if !told && ctx.Err() == nil {
			told = true
			klog.FromContext(ctx).Info("The record of resized pods cannot be read yet; no container starts before it is", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(recordPause):
		}
	}
}

func (k *recordKeeper) read(ctx context.Context) (r resizeRecord, err error) {
	data, err := k.files.ReadFile(ctx, k.path, maxRecord)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r, nil
	case errors.Is(err, host.ErrTooLarge):
		return r, k.unclear(err)
	case err != nil:
		return r, err
	}
	switch err := schema.Decode(data, resizeSchema, &r); {
	case schema.Newer(err):
		return resizeRecord{}, fmt.Errorf("%s: %w", k.path, err)
	case err != nil:
		return resizeRecord{}, k.unclear(err)
	}
	return r, nil
}

// unclear is that what the pods have is not known. It is not guessed, and the file is not
// written over.
func (k *recordKeeper) unclear(err error) error {
	return fmt.Errorf("%s, which says what resized pods have, cannot be understood (%w); restore it, or remove it if no pod of this node was resized", k.path, err)
}

// save writes down what a pod has now, and drops who has gone.
func (k *recordKeeper) save(ctx context.Context, a *allocations, uid types.UID, r resizedPod) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	a.mu.Lock()
	next := resizeRecord{SchemaVersion: resizeSchema, Pods: map[types.UID]resizedPod{uid: r}}
	all := a.everyPodSeen()
	for other, kept := range a.record.Pods {
		if other != uid && (!all || a.byUID[other] != nil) {
			next.Pods[other] = kept
		}
	}
	a.mu.Unlock()
	data, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("write the record of resized pods: %w", err)
	}
	if len(data) > maxRecord {
		return fmt.Errorf("write the record of resized pods: it would have %d bytes, and the most are %d", len(data), maxRecord)
	}
	if err := k.files.WriteFile(ctx, k.path, data, 0o600); err != nil {
		return fmt.Errorf("write the record of resized pods: %w", err)
	}
	a.mu.Lock()
	a.record = next
	a.mu.Unlock()
	return nil
}
