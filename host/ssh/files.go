package ssh

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// tailLimit bounds ReadTail on the host: a pod that replaces the file with a FIFO at the right
// moment blocks the open for this long.
const tailLimit = 3 * time.Second

// ReadFile follows links (/etc/resolv.conf is one). A FIFO is an error.
func (h *Host) ReadFile(ctx context.Context, path string, max int64) ([]byte, error) {
	return call(h, ctx, "ReadFile", shortDeadline, func(ctx context.Context) ([]byte, error) {
		if err := machine.Absolute("open", path); err != nil {
			return nil, err
		}
		max := min(max, h.budget.Limit(budget.FileBytes))
		var data []byte
		// The script reads at most one byte more than max, so more output does not come from the
		// script.
		err := h.read(ctx, "open", path, shell.Request{Script: scriptReadFile, Args: []string{path, itoa(max + 1)}, MaxStdout: int(max + 1),
			Whole: "more of " + path + " than was asked for", Kind: budget.FileBytes}, func(stdout []byte) error {
			if data = nonNil(stdout); int64(len(data)) > max {
				data = data[:max]
				return fmt.Errorf("read %s: more than %d bytes: %w", path, max, host.ErrTooLarge)
			}
			return h.budget.Check(budget.FileBytes, int64(len(data)), path)
		})
		return data, err
	})
}

func (h *Host) ReadTail(ctx context.Context, path string, max int64) ([]byte, error) {
	return call(h, ctx, "ReadTail", shortDeadline, func(ctx context.Context) ([]byte, error) {
		if err := machine.Absolute("open", path); err != nil {
			return nil, err
		}
		res, err := h.request(ctx, "open", path, shell.Request{Script: scriptReadTail,
			Args: []string{path, itoa(max), itoa(int64(tailLimit / time.Second))}, MaxStdout: int(max) + 1, Inside: true})
		if err != nil {
			return nil, err
		}
		return nonNil(res.Stdout), nil
	})
}

func nonNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// WriteFile is atomic even if the link or the power of the host ends at any point: the path
// holds the old content or the new.
func (h *Host) WriteFile(ctx context.Context, p string, data []byte, mode fs.FileMode) error {
	return run(h, ctx, "WriteFile", shortDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("write", p); err != nil {
			return err
		}
		p = path.Clean(p)
		_, err := h.request(ctx, "write", p, shell.Request{Script: scriptWriteFile,
			Args: []string{p, path.Dir(p), temporary(p), octal(mode), itoa(int64(len(data)))}, Stdin: data})
		return err
	})
}

// octal formats mode for chmod.
func octal(mode fs.FileMode) string {
	bits := uint64(mode.Perm())
	for special, bit := range map[fs.FileMode]uint64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&special != 0 {
			bits |= bit
		}
	}
	return fmt.Sprintf("%04o", bits)
}

// MkdirAll does not change a directory that exists, or a link to one.
func (h *Host) MkdirAll(ctx context.Context, p string, mode fs.FileMode, owner *host.Owner) error {
	return run(h, ctx, "MkdirAll", shortDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("make directory", p); err != nil {
			return err
		}
		p = path.Clean(p)
		special := "" // mkdir(2) ignores these bits, and chown(2) may clear them
		if mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 {
			special = octal(mode)
		}
		// A new parent is never writable by others, whatever mode is.
		mask := 0o777 &^ (mode & 0o755)
		_, err := h.script(ctx, "mkdir", p, scriptMkdirAll, []string{p, path.Dir(p), octal(mask), octal(0o777 &^ mode.Perm()), special, ownerWord(owner)}, nil)
		return err
	})
}

// ownerWord formats an owner for chown; empty if there is nothing to change.
func ownerWord(o *host.Owner) string {
	switch {
	case o == nil || o.UID < 0 && o.GID < 0:
		return ""
	case o.GID < 0:
		return itoa(o.UID)
	case o.UID < 0:
		return ":" + itoa(o.GID)
	}
	return itoa(o.UID) + ":" + itoa(o.GID)
}

// Symlink creates missing parents with mode 0755.
func (h *Host) Symlink(ctx context.Context, target, p string) error {
	return run(h, ctx, "Symlink", shortDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("link", p); err != nil {
			return err
		}
		p = path.Clean(p)
		_, err := h.script(ctx, "symlink", p, scriptSymlink, []string{target, p, path.Dir(p), temporary(p)}, nil)
		return err
	})
}

func (h *Host) Stat(ctx context.Context, p string) (host.FileInfo, error) {
	return call(h, ctx, "Stat", shortDeadline, func(ctx context.Context) (host.FileInfo, error) {
		if err := machine.Absolute("stat", p); err != nil {
			return host.FileInfo{}, err
		}
		return h.stat(ctx, path.Clean(p))
	})
}

func (h *Host) stat(ctx context.Context, p string) (host.FileInfo, error) {
	script := scriptStatPlain
	if h.machine().findPrintf {
		script = scriptStatGNU
	}
	res, err := h.script(ctx, "stat", p, script, []string{p}, nil)
	if err != nil {
		return host.FileInfo{}, err
	}
	infos, err := parseInfos(res.Stdout)
	if err != nil || len(infos) != 1 {
		return host.FileInfo{}, fmt.Errorf("stat %s: %d records: %w", p, len(infos), err)
	}
	infos[0].Name = path.Base(p)
	return infos[0], nil
}

func (h *Host) List(ctx context.Context, dir string) ([]host.FileInfo, error) {
	return call(h, ctx, "List", shortDeadline, func(ctx context.Context) ([]host.FileInfo, error) {
		if err := machine.Absolute("list", dir); err != nil {
			return nil, err
		}
		script := scriptListPlain
		if h.machine().findPrintf {
			script = scriptListGNU
		}
		var infos []host.FileInfo
		most := int(h.budget.Limit(budget.OutputBytes))
		err := h.read(ctx, "open", dir, shell.Request{Script: script, Args: []string{dir}, MaxStdout: most}, func(stdout []byte) (err error) {
			if err = checkEntries(h.budget, stdout); err == nil && len(stdout) == most {
				err = fmt.Errorf("the directory is too large: %w", host.ErrTooLarge)
			}
			if err == nil {
				infos, err = parseInfos(stdout)
			}
			if err != nil {
				return fmt.Errorf("list %s: %w", dir, err)
			}
			return nil
		})
		return infos, err
	})
}

func (h *Host) Remove(ctx context.Context, p string) error {
	return run(h, ctx, "Remove", shortDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("remove", p); err != nil {
			return err
		}
		args := []string{path.Clean(p)}
		if _, held := h.held.LoadAndDelete(args[0]); held {
			// Also remove the session file of the lock, because the directory may be removed
			// next.
			args = append(args, args[0]+sessionSuffix)
		}
		_, err := h.script(ctx, "remove", p, scriptRemove, args, nil)
		return err
	})
}
