package handover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/bowline-k8s/bowline/host"
)

// Undoing is what came of it.
type Undoing struct {
	Done []string // what is as it was before
	Kept []string // what is not, and why
}

// Undo brings back what was before the mends, the last one first: those that a
// runtime needs to be seen by (restarts false), or those that restart it. A file that
// somebody has changed since is left, and so is the network while anybody uses it. What
// failed is kept too; done again, Undo goes on.
func Undo(ctx context.Context, m Machine, r *Record, restarts bool) Undoing {
	var u Undoing
	for _, mend := range slices.Backward(r.Mends) {
		if mend.Restart != restarts {
			continue
		}
		if !restarts && used(ctx, m, r) {
			// Settings too: what forwards packets is needed by who sends them.
			u.Kept = append(u.Kept, mend.Name+": pods of somebody else are on "+bridgeName)
			continue
		}
		if err := u.mend(ctx, m, mend); err != nil {
			u.Kept = append(u.Kept, mend.Name+": "+err.Error())
		}
	}
	return u
}

// used tells whether anything hangs on a bridge of ours.
func used(ctx context.Context, m Machine, r *Record) bool {
	for _, mend := range r.Mends {
		if mend.Bridge == "" {
			continue
		}
		if ports, err := m.List(ctx, "/sys/class/net/"+mend.Bridge+"/brif"); err == nil && len(ports) > 0 {
			return true
		}
	}
	return false
}

func (u *Undoing) mend(ctx context.Context, m Machine, mend Mend) error {
	changed := false
	for _, e := range slices.Backward(mend.Edits) {
		did, err := u.edit(ctx, m, e)
		if err != nil {
			return err
		}
		changed = changed || did
	}
	for _, s := range mend.Kernel {
		if err := u.setting(ctx, m, s); err != nil {
			return err
		}
	}
	if mend.Bridge != "" {
		if _, err := m.Stat(ctx, "/sys/class/net/"+mend.Bridge); err == nil {
			if err := run(ctx, m, runTime, "ip", "link", "delete", mend.Bridge); err != nil {
				return err
			}
			u.Done = append(u.Done, "removed the link "+mend.Bridge)
		}
	}
	if mend.Leavings != "" {
		if err := m.RemoveTree(ctx, mend.Leavings); err != nil {
			return fmt.Errorf("remove %s: %w", mend.Leavings, err)
		}
	}
	if mend.Restart && changed {
		if err := restart(ctx, m); err != nil {
			return err
		}
		u.Done = append(u.Done, "restarted containerd")
	}
	return nil
}

// edit brings a file back; changed tells whether there was anything to do.
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
		u.Kept = append(u.Kept, e.Path+": somebody has changed it since; bring it back by hand")
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
		_ = m.Remove(ctx, dir) // only if nobody has put anything there
	}
	return changed, nil
}

type editVerdict int

const (
	editNothing editVerdict = iota // it is as it was before
	editRestore
	editRemove
	editKeep // neither as we wrote it nor as it was before
)

// decideEdit is PURE: what becomes of a file whose content is now.
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

// setting brings a setting of the kernel back, unless somebody has set it since, or
// it came with a module that may be in use by now.
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

// Forget removes the record, and the directories of a node that were not there before
// and hold nothing.
func Forget(ctx context.Context, m Machine, r *Record, rootDir string) error {
	for _, file := range []string{RecordPath(rootDir), rootDir + "/bowline"} {
		if err := m.Remove(ctx, file); err != nil && !errors.Is(err, fs.ErrNotExist) && file == RecordPath(rootDir) {
			return fmt.Errorf("remove the record of what was prepared: %w", err)
		}
	}
	_ = m.Remove(ctx, rootDir+"/pods") // if it is empty: made again by who needs it
	for _, dir := range r.Absent {
		_ = m.Remove(ctx, dir)
	}
	return nil
}

var _ Machine = host.Host(nil)
