package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

var propagations = []string{"private", "rprivate", "shared", "rshared", "slave", "rslave", "unbindable", "runbindable"}

// mountArgs splits the options of m as scripts/mount.sh takes them.
func mountArgs(m host.Mount) (fsType, options, again, propagation string) {
	fsType = m.Type
	var rest, flags []string
	for _, o := range m.Options {
		switch {
		case o == "bind" && fsType != "rbind":
			fsType = "bind"
		case o == "rbind":
			fsType = "rbind"
		case slices.Contains(propagations, o):
			flags = append(flags, o)
		case o == "defaults" || o == "rw":
		default:
			rest = append(rest, o)
		}
	}
	options = strings.Join(rest, ",")
	if fsType == "bind" || fsType == "rbind" {
		options, again = "", options
	}
	return fsType, options, again, strings.Join(flags, " ")
}

// Mount does nothing where the same thing is mounted already, so that it can be
// repeated after an answer that did not arrive. The target of a bound file is a file.
func (h *Host) Mount(ctx context.Context, m host.Mount) error {
	return run(h, ctx, "Mount", mountDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("mount on", m.Target); err != nil {
			return err
		}
		target := path.Clean(m.Target)
		fsType, options, again, propagation := mountArgs(m)
		text := scriptMount
		if machine.Shared(m.Type) {
			text, options = scriptMountShared, machine.ShareOptions(m.Options)
		}
		if strings.HasPrefix(m.Source, "-") || fsType == "" {
			return fmt.Errorf("mount on %s: source %q, type %q", m.Target, m.Source, m.Type)
		}
		_, err := h.script(ctx, "mount on", target, text,
			[]string{m.Source, target, path.Dir(target), fsType, options, again, propagation}, nil)
		return err
	})
}

// Unmount takes away everything that is stacked on target. A mount that is in use
// goes out of sight at once and for good with its last user.
func (h *Host) Unmount(ctx context.Context, target string) error {
	return run(h, ctx, "Unmount", mountDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("unmount", target); err != nil {
			return err
		}
		target := path.Clean(target)
		_, err := h.script(ctx, "unmount", target, scriptUnmount, []string{target, path.Dir(target), "5"}, nil)
		return err
	})
}

const maxMountInfo = 64 << 20

// ListMounts names the targets below dir as the caller does, whatever links dir contains.
func (h *Host) ListMounts(ctx context.Context, dir string) ([]host.Mount, error) {
	return call(h, ctx, "ListMounts", mountDeadline, func(ctx context.Context) ([]host.Mount, error) {
		if err := machine.Absolute("list mounts of", dir); err != nil {
			return nil, err
		}
		res, err := h.request(ctx, "list mounts of", dir, shell.Request{Script: scriptListMounts, Args: []string{path.Clean(dir)}, MaxStdout: maxMountInfo})
		if err != nil {
			return nil, err
		}
		return parseMounts(dir, res.Stdout)
	})
}

func parseMounts(dir string, data []byte) ([]host.Mount, error) {
	before, info, ok := bytes.Cut(data, []byte{0})
	if !ok {
		return nil, errors.New("list mounts: the answer is cut off")
	}
	entries, err := machine.ParseMountInfo(info)
	if err != nil {
		return nil, err
	}
	return machine.MountsBelow(dir, string(before), entries), nil
}
