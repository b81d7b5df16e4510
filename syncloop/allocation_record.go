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

// resizeRecord is a file on the host with what the runtime cannot store: the allocations of resized
// pods. It is written before a resize begins and when it is done. It does not list pods that were
// never resized, nor resizes that were accepted and have not begun; the next process judges those
// again.
type resizeRecord struct {
	SchemaVersion int `json:"schemaVersion"`

	Pods map[types.UID]resizedPod `json:"pods"`
}

// resizedPod is one pod of the record.
type resizedPod struct {
	// Sandbox is the ID of the sandbox that this entry describes. A later sandbox is made for the
	// allocation at that time and carries it in its own annotation.
	Sandbox    string         `json:"sandbox"`
	Allocation pod.Allocation `json:"allocation"`
	// Was is the previous allocation while the resize is under way.
	Was *pod.Allocation `json:"was,omitempty"`
	// Sized holds, by container ID, the sizes that differ from the ones the containers were made
	// with.
	Sized map[string]pod.Size `json:"sized,omitempty"`
}

// recordFiles has the file operations of the host that the record needs.
type recordFiles interface {
	ReadFile(ctx context.Context, path string, max int64) ([]byte, error)
	WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error
}

// ResizeRecord returns the path of the record of resized pods below the root directory.
func ResizeRecord(root string) string { return path.Join(root, "bowline", "resizes.json") }

const (
	// resizeSchema is the version of the record's schema.
	resizeSchema = 1

	maxRecord   = 8 << 20 // bytes; a larger file is neither read nor written
	recordPause = time.Second
)

// recordKeeper reads and writes the record. Writes are serialized, and each writes the whole
// record.
type recordKeeper struct {
	files recordFiles
	path  string
	mu    sync.Mutex
}

// load reads the record and retries until it succeeds: without it the allocations from before the
// restart are unknown.
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
			klog.FromContext(ctx).Error(err, "Failed to read the record of resized pods, will retry; no container starts until then")
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

// unclear returns the error for a record that cannot be decoded. Allocations are not guessed, and
// the file is not overwritten.
func (k *recordKeeper) unclear(err error) error {
	return fmt.Errorf("cannot parse %s, the record of resized pods (%w); restore it, or remove it if no pod of this node was resized", k.path, err)
}

// save records the current state of a pod, and drops pods that are gone.
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
		return fmt.Errorf("write the record of resized pods: %d bytes exceed the limit of %d", len(data), maxRecord)
	}
	if err := k.files.WriteFile(ctx, k.path, data, 0o600); err != nil {
		return fmt.Errorf("write the record of resized pods: %w", err)
	}
	a.mu.Lock()
	a.record = next
	a.mu.Unlock()
	return nil
}
