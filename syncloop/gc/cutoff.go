package gc

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/bowline-k8s/bowline/host"
)

// cutOff removes what interrupted writes left in the directories that outlive pods: temporary names
// of files and links that were never renamed. It removes a name that two consecutive sweeps have
// seen; no write takes that long. lists has what the look of this sweep found in the record and
// link directories.
func (s *Sweeper) cutOff(ctx context.Context, lists map[string][]host.FileInfo) (removed int, err error) {
	parent := path.Dir(s.cfg.RecordDir)
	if lists[parent], err = s.list(ctx, parent); err != nil {
		return 0, err
	}
	seen := map[string]bool{}
	var faults []error
	for dir, infos := range lists {
		for _, f := range infos {
			file := path.Join(dir, f.Name)
			switch {
			case f.Mode.IsDir() || !host.IsTemporary(f.Name):
			case !s.cut[file]:
				seen[file] = true
			default:
				if err := ignoreMissing(s.cfg.Host.Remove(ctx, file)); err != nil {
					faults = append(faults, fmt.Errorf("remove %s, left by a write that was cut off: %w", file, err))
					seen[file] = true
					continue
				}
				removed++
			}
		}
	}
	s.cut = seen
	return removed, errors.Join(faults...)
}
