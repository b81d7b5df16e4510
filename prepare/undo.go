package prepare

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/bowline-k8s/bowline/host"
)

// Undoing is the result of Undo.
type Undoing struct {
	Done []string // what was restored
	Kept []string // what was not, and why
}

// Undo undoes the fixes in reverse order: with restarts false those that do not restart the
// runtime, which must still answer meanwhile; with restarts true those that restart it. It keeps a
// file that someone has changed since, and the network while other pods use it. A failed fix is
// kept too; the next Undo retries it.
func Undo(ctx context.Context, m Machine, r *Record, restarts bool) Undoing {
	var u Undoing
	for _, fix := range slices.Backward(r.Fixes) {
		if fix.Restart != restarts {
			continue
		}
		if !restarts && used(ctx, m, r) {
			// The kernel settings too: those pods need forwarding.
			u.Kept = append(u.Kept, fix.Name+": pods of another program use "+bridgeName)
			continue
		}
		if err := u.fix(ctx, m, fix); err != nil {
			u.Kept = append(u.Kept, fix.Name+": "+err.Error())
		}
	}
	return u
}

// used reports whether a bridge of ours has ports.
func used(ctx context.Context, m Machine, r *Record) bool {
	for _, fix := range r.Fixes {
		if fix.Bridge == "" {
			continue
		}
		if ports, err := m.List(ctx, "/sys/class/net/"+fix.Bridge+"/brif"); err == nil && len(ports) > 0 {
			return true
		}
	}
	return false
}

func (u *Undoing) fix(ctx context.Context, m Machine, fix Fix) error {
	changed := false
	for _, e := range slices.Backward(fix.Edits) {
		did, err := u.edit(ctx, m, e)
		if err != nil {
			return err
		}
		changed = changed || did
	}
	for _, s := range fix.Kernel {
		if err := u.setting(ctx, m, s); err != nil {
			return err
		}
	}
	if fix.Bridge != "" {
		if _, err := m.Stat(ctx, "/sys/class/net/"+fix.Bridge); err == nil {
			if err := run(ctx, m, runTime, "ip", "link", "delete", fix.Bridge); err != nil {
				return err
			}
			u.Done = append(u.Done, "removed the link "+fix.Bridge)
		}
	}
	if fix.Leavings != "" {
		if err := m.RemoveTree(ctx, fix.Leavings); err != nil {
			return fmt.Errorf("remove %s: %w", fix.Leavings, err)
		}
	}
	if fix.Restart && changed {
		if err := restart(ctx, m); err != nil {
			return err
		}
		u.Done = append(u.Done, "restarted containerd")
	}
	return nil
}

// edit restores a file. changed reports whether there was anything to do.
func (u *Undoing) edit(ctx context.Context, m Machine, e Edit) (changed bool, err error) {
	data, err := m.ReadFile(ctx, e.Path, maxFile)
	var now *string
	switch {
	case err == nil:
		text := string(data)
		now = &text
	case !errors.Is(err, fs.ErrNotExist):
		return false, fmt.Errorf("read %s: %w", e.Path, err)
	}
	switch decideEdit(now, e) {
	case editKeep:
		u.Kept = append(u.Kept, e.Path+": it was changed since; restore it yourself")
		return false, nil
	case editRestore:
		if err := m.WriteFile(ctx, e.Path, []byte(*e.Old), e.Mode); err != nil {
			return false, fmt.Errorf("bring %s back: %w", e.Path, err)
		}
		u.Done = append(u.Done, "brought "+e.Path+" back")
		changed = true
	case editRemove:
		if err := m.Remove(ctx, e.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("remove %s: %w", e.Path, err)
		}
		u.Done = append(u.Done, "removed "+e.Path)
		changed = true
	}
	for _, dir := range slices.Backward(e.Dirs) {
		_ = m.Remove(ctx, dir) // fails unless it is empty
	}
	return changed, nil
}

type editVerdict int

const (
	editNothing editVerdict = iota // the content is the old one
	editRestore
	editRemove
	editKeep // the content is neither the old one nor ours
)

// decideEdit decides what to do with a file whose content is now. It is pure.
func decideEdit(now *string, e Edit) editVerdict {
	switch {
	case now == nil && e.Old == nil, now != nil && e.Old != nil && *now == *e.Old:
		return editNothing
	case now == nil || *now != e.New:
		return editKeep
	case e.Old == nil:
		return editRemove
	}
	return editRestore
}

// setting restores a kernel setting, unless someone has changed it since, or it came with a module,
// which may be in use by now.
func (u *Undoing) setting(ctx context.Context, m Machine, s Setting) error {
	if s.Old == "" || s.Old == s.New {
		return nil
	}
	data, err := m.ReadFile(ctx, s.path(), maxFile)
	if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(string(data)) != s.New {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", s.Name, err)
	}
	if err := set(ctx, m, s.path(), s.Old); err != nil {
		return err
	}
	u.Done = append(u.Done, fmt.Sprintf("set %s=%s as before", s.Name, s.Old))
	return nil
}

// Forget removes the record, and the empty directories of a node that did not exist before.
func Forget(ctx context.Context, m Machine, r *Record, rootDir string) error {
	for _, file := range []string{RecordPath(rootDir), rootDir + "/bowline"} {
		if err := m.Remove(ctx, file); err != nil && !errors.Is(err, fs.ErrNotExist) && file == RecordPath(rootDir) {
			return fmt.Errorf("remove the record of host prepare: %w", err)
		}
	}
	_ = m.Remove(ctx, rootDir+"/pods") // only if it is empty; a node recreates it
	for _, dir := range r.Absent {
		_ = m.Remove(ctx, dir)
	}
	return nil
}

var _ Machine = host.Host(nil)
