package allocation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/schema"
	"github.com/bowline-k8s/bowline/pod"
)

// record is the file on the host with the state that the runtime cannot store: the allocations of
// resized pods. The manager writes it before a resize begins and when it has completed. It does not list pods that were never
// resized, nor resizes that were accepted and have not begun; the next process decides on those
// again.
type record struct {
	SchemaVersion int `json:"schemaVersion"`

	Pods map[types.UID]Resized `json:"pods"`
}

// Resized is one pod of the checkpoint.
type Resized struct {
	// Sandbox is the ID of the sandbox that this entry describes. A later sandbox is created with
	// the allocation of that time, and has it in its own annotation.
	Sandbox    string         `json:"sandbox"`
	Allocation pod.Allocation `json:"allocation"`
	// Was is the previous allocation while the resize is under way.
	Was *pod.Allocation `json:"was,omitempty"`
	// Sized holds, by container ID, the sizes that differ from those at the containers' creation.
	Sized map[string]pod.Size `json:"sized,omitempty"`
}

// Files has the file operations of the host that the checkpoint needs.
type Files interface {
	ReadFile(ctx context.Context, path string, max int64) ([]byte, error)
	WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error
}

// Checkpoint returns the path of the record of resized pods below the root directory.
func Checkpoint(root string) string { return path.Join(root, "bowline", "resizes.json") }

const (
	// recordSchema is the version of the record's schema.
	recordSchema = 1

	maxRecord   = 8 << 20 // bytes; a larger file is neither read nor written
	recordPause = time.Second
)

// load reads the record and retries until it succeeds: without it the allocations from before the
// restart are unknown.
func (m *Manager) load(ctx context.Context) {
	m.do(ctx, func() {
		failed := false
		_ = wait.PollUntilContextCancel(ctx, recordPause, true, func(ctx context.Context) (bool, error) {
			r, err := readRecord(ctx, m.cfg.Files, Checkpoint(m.cfg.Root))
			if err == nil {
				m.post(func(context.Context) { m.checkpoint, m.loaded = r, true })
			} else if !failed && ctx.Err() == nil {
				failed = true
				klog.FromContext(ctx).Error(err, "Failed to read the record of resized pods, will retry; no container starts", hint.With(err)...)
			}
			return err == nil, nil
		})
	})
}

// readRecord fails for a record that cannot be decoded: allocations are not guessed, and the file
// is not overwritten.
func readRecord(ctx context.Context, files Files, path string) (r record, err error) {
	data, err := files.ReadFile(ctx, path, maxRecord)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r, nil
	case errors.Is(err, host.ErrTooLarge):
	case err != nil:
		return r, err
	default:
		if err = schema.Decode(data, recordSchema, &r); err == nil {
			return r, nil
		} else if schema.Newer(err) {
			return record{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	return record{}, hint.Add(fmt.Errorf("cannot parse the record of resized pods %s: %w", path, err), "restore it, or remove it if no pod of this node was resized")
}

// Save records the current state of a pod, and drops pods that are gone. One write is under way at
// a time, and each writes the whole record.
func (m *Manager) Save(ctx context.Context, uid types.UID, r Resized) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write the record of resized pods: %w", err)
		}
	}()
	select {
	case m.saving <- struct{}{}:
		defer func() { <-m.saving }()
	case <-ctx.Done():
		return ctx.Err()
	}
	next := make(chan record, 1)
	m.post(func(context.Context) { next <- m.with(uid, r) })
	select {
	case all := <-next:
		if err = writeRecord(ctx, m.cfg.Files, Checkpoint(m.cfg.Root), all); err == nil {
			m.post(func(context.Context) { m.checkpoint = all })
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// with returns the checkpoint with this state of a pod.
func (m *Manager) with(uid types.UID, r Resized) record {
	next := record{SchemaVersion: recordSchema, Pods: map[types.UID]Resized{uid: r}}
	all := m.everyPodKnown()
	for other, kept := range m.checkpoint.Pods {
		if other != uid && (!all || m.has(other)) {
			next.Pods[other] = kept
		}
	}
	return next
}

func writeRecord(ctx context.Context, files Files, path string, r record) error {
	data, err := json.Marshal(r)
	switch {
	case err != nil:
		return err
	case len(data) > maxRecord:
		return fmt.Errorf("%d bytes exceed the limit of %d", len(data), maxRecord)
	}
	return files.WriteFile(ctx, path, data, 0o600)
}
