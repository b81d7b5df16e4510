package gc

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/bowline-k8s/bowline/host"
)

// cutOff removes what writes that were cut off left behind, in the directories
// that outlive pods: the temporary name of a file or a link, never renamed. One
// that two sweeps in a row have seen is none under way, as no write takes that
// long.
func (s *Sweeper) cutOff(ctx context.Context) (removed int, err error) {
	seen := map[string]bool{}
	var faults []error
	for _, dir := range []string{path.Dir(s.cfg.RecordDir), s.cfg.RecordDir, s.cfg.LinksDir} {
		infos, err := s.list(ctx, dir)
		if err != nil {
			return removed, err
		}
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
