package release

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/prepare"
)

// Listing is what exists on a machine of the kinds that nodes create: names by kind.
type Listing map[string][]string

// Kinds of a listing, in display order.
const (
	KindSandboxes   = "pod sandboxes"
	KindContainers  = "containers"
	KindMounts      = "mounts"
	KindLinks       = "network links"
	KindRules       = "packet filter rules"
	KindCgroups     = "cgroups"
	KindDirectories = "directories and files"
	KindProcesses   = "shim processes"
)

var kinds = []string{KindSandboxes, KindContainers, KindMounts, KindLinks, KindRules, KindCgroups, KindDirectories, KindProcesses}

const listTime = time.Minute

// scriptList prints "KIND<tab>NAME" lines. "$@" are directories, listed to the depth of a pod's
// own. Missing directories and missing tools print nothing.
const scriptList = `while read -r _ _ _ _ at _; do printf 'mounts\t%s\n' "$at"; done </proc/self/mountinfo
for l in /sys/class/net/*; do printf 'network links\t%s\n' "${l##*/}"; done
for t in iptables-save ip6tables-save; do
	command -v $t >/dev/null 2>&1 && $t 2>/dev/null | while read -r r; do
		case $r in '#'*|COMMIT) continue ;; :*) r=${r% *} ;; esac
		printf 'packet filter rules\t%s: %s\n' "${t%-save}" "$r"
	done
done
find /sys/fs/cgroup -maxdepth 5 -type d -path '*kubepods*' 2>/dev/null | while read -r c; do printf 'cgroups\t%s\n' "$c"; done
for d; do
	[ -e "$d" ] && find "$d" -xdev -maxdepth 2 2>/dev/null | while read -r f; do printf 'directories and files\t%s\n' "$f"; done
done
grep -ls containerd-shim /proc/[0-9]*/comm 2>/dev/null | while read -r f; do
	tr '\0' ' ' <"${f%/comm}/cmdline" 2>/dev/null | { read -r line; printf 'shim processes\t%s\n' "$line"; }
done
exit 0`

// List lists the machine. Seen.AddTo adds what the runtime lists.
func List(ctx context.Context, m host.Host, rootDir string) (Listing, error) {
	dirs := []string{rootDir, "/var/log/pods", "/var/log/containers", "/run/bowline", "/run/netns", "/var/lib/cni", "/etc/cni", prepare.SysctlFile, prepare.ModuleFile}
	res, err := m.Run(ctx, host.Command{Args: append([]string{"sh", "-c", scriptList, "sh"}, dirs...), Timeout: listTime})
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("it ended with %d: %s", res.ExitCode, strings.TrimSpace(string(res.Stderr)))
	}
	if err != nil {
		return nil, fmt.Errorf("list host state: %w", err)
	}
	return parseListing(string(res.Stdout)), nil
}

func parseListing(out string) Listing {
	l := Listing{}
	for line := range strings.Lines(out) {
		if kind, name, ok := strings.Cut(strings.TrimRight(line, "\n "), "\t"); ok && slices.Contains(kinds, kind) {
			l[kind] = append(l[kind], name)
		}
	}
	for _, names := range l {
		slices.Sort(names)
	}
	return l
}

// Change is the difference of one kind between two listings.
type Change struct {
	Kind          string
	Before, After int
	Gone, New     []string
}

// Compare compares two listings, kind by kind. It is pure.
func Compare(before, after Listing) []Change {
	var out []Change
	for _, kind := range kinds {
		b, a := before[kind], after[kind]
		if len(a)+len(b) == 0 {
			continue
		}
		c := Change{Kind: kind, Before: len(b), After: len(a)}
		count := map[string]int{}
		for _, name := range a {
			count[name]++
		}
		for _, name := range b {
			count[name]--
		}
		for _, name := range slices.Sorted(maps.Keys(count)) {
			switch n := count[name]; {
			case n > 0:
				c.New = append(c.New, name)
			case n < 0:
				c.Gone = append(c.Gone, name)
			}
		}
		out = append(out, c)
	}
	return out
}

// Text formats changes: counts of each kind, and which names went and came.
func Text(changes []Change) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-24s %7s %7s\n", "ON THE HOST", "BEFORE", "AFTER")
	for _, c := range changes {
		fmt.Fprintf(&b, "%-24s %7d %7d\n", c.Kind, c.Before, c.After)
		for _, name := range c.Gone {
			fmt.Fprintf(&b, "  - %s\n", name)
		}
		for _, name := range c.New {
			fmt.Fprintf(&b, "  + %s\n", name)
		}
	}
	return b.String()
}

// Ours identifies what is ours in a listing.
type Ours struct {
	IDs     []string // of sandboxes and containers with our stamp
	Pods    []string // UIDs, recorded or stamped
	Paths   []string // files and directories that are ours with all their content
	Bridges []string
}

// Stays lists what of ours is still in a listing, as "kind: name". It is pure.
func Stays(l Listing, ours Ours) []string {
	var out []string
	for _, kind := range kinds {
		for _, name := range l[kind] {
			if ours.has(kind, name) {
				out = append(out, kind+": "+name)
			}
		}
	}
	return out
}

func (o Ours) has(kind, name string) bool {
	contains := func(parts []string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return p != "" && strings.Contains(name, p) })
	}
	switch kind {
	case KindLinks:
		return slices.Contains(o.Bridges, name)
	case KindRules:
		return contains(o.IDs)
	case KindCgroups:
		// systemd's names have the UID with underscores.
		name = strings.ReplaceAll(name, "_", "-")
		return contains(o.Pods) || contains(o.IDs)
	}
	return contains(o.IDs) || contains(o.Pods) || slices.ContainsFunc(o.Paths, func(p string) bool {
		return name == p || strings.HasPrefix(name, p+"/")
	})
}
