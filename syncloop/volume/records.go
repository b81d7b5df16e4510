package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/schema"
)

// RecordDir holds one file, named by its UID, for each pod that was ever prepared here and is not
// swept yet.
func RecordDir(root string) string { return path.Join(root, "bowline", "pods") }

func (m *Manager) recordPath(uid types.UID) string {
	return path.Join(RecordDir(m.cfg.RootDir), string(uid))
}

// recordVersion is the schema version of record; the first releases wrote none.
const recordVersion = 1

// maxRecord is more than a record of this version can have.
const maxRecord = 64 << 10

// record is for people and for later versions: the sweep needs only the file's name.
type record struct {
	SchemaVersion int    `json:"schemaVersion"`
	Namespace     string `json:"namespace"`
	Name          string `json:"name"`
}

// record returns the file that is written to the host before anything else of the pod.
func (m *Manager) record(p *v1.Pod) (host.Entry, error) {
	data, err := json.Marshal(record{SchemaVersion: recordVersion, Namespace: p.Namespace, Name: p.Name})
	if err != nil {
		return host.Entry{}, fmt.Errorf("record pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return host.Entry{Path: m.recordPath(p.UID), Mode: 0o640, Data: data, Synced: true}, nil
}

// RecordFiles is the part of host.Host that CheckRecords needs.
type RecordFiles interface {
	List(ctx context.Context, dir string) ([]host.FileInfo, error)
	ReadFile(ctx context.Context, path string, max int64) ([]byte, error)
}

// recordsAtOnce is how many records CheckRecords reads at a time.
const recordsAtOnce = 16

// CheckRecords returns an error if a newer Bowline wrote a record of a pod: it is then unknown what
// the pod has on the host. Call it before anything of the pods is changed. A record that cannot be
// parsed is no error, as its name is enough for this version.
func CheckRecords(ctx context.Context, h RecordFiles, root string) error {
	dir := RecordDir(root)
	files, err := h.List(ctx, dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list the records of pods: %w", err)
	}
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(recordsAtOnce)
	for _, f := range files {
		// The temporary name of an interrupted write is not a UID.
		if !f.Mode.IsRegular() || strings.HasPrefix(f.Name, ".") {
			continue
		}
		all.Go(func() (err error) {
			err = budget.ErrPanicked
			defer budget.From(ctx).Recover("read the record of a pod")
			err = checkRecord(ctx, h, path.Join(dir, f.Name))
			return err
		})
	}
	return all.Wait()
}

func checkRecord(ctx context.Context, h RecordFiles, file string) error {
	data, err := h.ReadFile(ctx, file, maxRecord)
	switch {
	case errors.Is(err, host.ErrTooLarge): // no version so far writes as much
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("read the records of pods: %w", err)
	default:
		if err = schema.Decode(data, recordVersion, &record{}); !schema.Newer(err) {
			return nil
		}
	}
	return fmt.Errorf("the pod record %s belongs to another Bowline: %w", file, err)
}
