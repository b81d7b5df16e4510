package ssh

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// tools are the programs that the scripts use, of coreutils and util-linux or of busybox.
var tools = []string{"cat", "chgrp", "chmod", "chown", "cut", "date", "dd", "find", "flock", "grep", "head", "id", "ln", "mkdir", "mount",
	"mv", "readlink", "rm", "rmdir", "sed", "setsid", "sha256sum", "sleep", "stat", "sync", "tail", "timeout", "tr", "umount", "uname", "wc", "xargs"}

// found are the tools and features of the host.
type found struct {
	findPrintf  bool // GNU find: one process for any number of entries
	oneFS       bool // rm --one-file-system
	nanoseconds bool // date +%N
	unshare     bool // unshare -m
	propagation bool // unshare -m --propagation private
	asRoot      bool
	hier        machine.Hierarchies
	boot        string // ID of the boot that the rest is of; empty before the first Facts
}

// machine returns the tools and features of the host. A caller that needs two fields calls it once.
func (h *Host) machine() *found {
	if f := h.found.Load(); f != nil {
		return f
	}
	return &found{} // during the first probe
}

// booted probes again if the host has rebooted since the last probe: its cgroup version and its
// tools may have changed. It reports whether it did. Concurrent calls get the same result.
func (h *Host) booted(ctx context.Context, boot string) (again bool, err error) {
	last := h.machine()
	if last.boot == boot || boot == "" {
		return false, nil
	}
	next := *last
	if again = last.boot != ""; again {
		if next, err = h.probe(ctx); err != nil {
			return false, err
		}
	}
	next.boot = boot
	h.found.Store(&next)
	return again, nil
}

func (h *Host) probe(ctx context.Context) (found, error) {
	res, err := h.script(ctx, "look at", "the tools", scriptProbe, append([]string{h.rootDir}, tools...), nil)
	if err != nil {
		return found{}, err
	}
	if err := checkMounts(h.budget, res.Stdout); err != nil {
		return found{}, err
	}
	f, err := parseProbe(res.Stdout)
	if err != nil {
		return found{}, fmt.Errorf("PATH=%s: %w", h.path, err)
	}
	return f, nil
}

func parseProbe(data []byte) (found, error) {
	var f found
	var missing []string
	head, mounts, ok := bytes.Cut(data, []byte("mounts\n"))
	if !ok {
		return f, fmt.Errorf("the host answered the first request with %.200q", data)
	}
	for line := range strings.Lines(string(head)) {
		line = strings.TrimSuffix(line, "\n")
		if tool, ok := strings.CutPrefix(line, "missing "); ok {
			missing = append(missing, tool)
		}
		switch line {
		case "can find-printf":
			f.findPrintf = true
		case "can rm-one-file-system":
			f.oneFS = true
		case "can date-nanoseconds":
			f.nanoseconds = true
		case "can unshare":
			f.unshare = true
		case "can unshare-propagation":
			f.propagation = true
		case "uid 0":
			f.asRoot = true
		}
	}
	if len(missing) > 0 {
		return f, hint.Add(fmt.Errorf("the host lacks %s", strings.Join(missing, ", ")), "install coreutils, findutils and util-linux, or busybox with these applets")
	}
	entries, err := machine.ParseMountInfo(mounts)
	if err != nil {
		return f, err
	}
	f.hier = machine.FindHierarchies(entries)
	return f, nil
}
