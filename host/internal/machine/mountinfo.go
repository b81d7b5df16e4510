// Package machine has what the host.Host implementations share about Linux: how to read the
// files of /proc and what follows from them. It does no I/O.
package machine

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/bowline-k8s/bowline/host"
)

// MountEntry is one line of proc_pid_mountinfo(5).
type MountEntry struct {
	Device       string // major:minor
	Root         string // of the mount within its file system
	Point        string
	Options      string // of the mount, separated by commas
	Shared       bool   // mounts below it propagate to other mount namespaces
	FSType       string
	Source       string
	SuperOptions string // of the file system, separated by commas
}

// ParseMountInfo returns the mounts in the kernel's order: a later one covers an earlier one at
// the same point. The entries share one copy of data: a node with a hundred pods has hundreds of
// mounts, and reads them several times per pod.
func ParseMountInfo(data []byte) ([]MountEntry, error) {
	entries := make([]MountEntry, 0, bytes.Count(data, []byte("\n"))+1)
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\n")
		if line == "" {
			continue
		}
		e, ok := parseMountEntry(line)
		if !ok {
			return nil, fmt.Errorf("mountinfo: cannot read the line %q", line)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// parseMountEntry parses a line such as
//
//	36 35 98:0 /root /point rw,noatime shared:1 - ext3 /dev/root rw,errors=continue
func parseMountEntry(line string) (e MountEntry, ok bool) {
	before, after, ok := strings.Cut(line, " - ")
	if !ok {
		return e, false
	}
	var fields [5]string
	for i := range fields {
		if fields[i], before, ok = strings.Cut(before, " "); !ok {
			return e, false
		}
	}
	options, optional, _ := strings.Cut(before, " ")
	if e.FSType, after, ok = strings.Cut(after, " "); !ok {
		return e, false
	}
	source, after, _ := strings.Cut(after, " ")
	e.SuperOptions, _, _ = strings.Cut(after, " ")
	e.Device, e.Options = fields[2], options
	e.Root, e.Point, e.Source = unescapeMount(fields[3]), unescapeMount(fields[4]), unescapeMount(source)
	e.Shared = strings.HasPrefix(optional, "shared:") || strings.Contains(optional, " shared:")
	return e, strings.HasPrefix(fields[4], "/")
}

// hasOption reports whether a list of options separated by commas has this one.
func hasOption(list, option string) bool {
	for o := range strings.SplitSeq(list, ",") {
		if o == option {
			return true
		}
	}
	return false
}

// unescapeMount decodes the kernel's \ooo escapes of blanks and backslashes.
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && isOctal(s[i+1:i+4]) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func isOctal(s string) bool { return strings.Trim(s, "01234567") == "" && s[0] <= '3' }

// Below reports whether p is dir or inside it.
func Below(dir, p string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// MountOf returns the mount that contains path; nil if there is none. path must not contain
// links.
func MountOf(entries []MountEntry, path string) *MountEntry {
	var of *MountEntry
	for i := range entries {
		if e := &entries[i]; Below(e.Point, path) && (of == nil || len(e.Point) >= len(of.Point)) {
			of = e
		}
	}
	return of
}

// MountsBelow returns the mounts at and below dir, deepest first, and of stacked mounts the top
// one first. real is dir with links resolved, as mountinfo has it; the targets begin with dir.
func MountsBelow(dir, real string, entries []MountEntry) []host.Mount {
	var mounts []host.Mount
	// Backwards, because the last mount is on top.
	for _, e := range slices.Backward(entries) {
		if !Below(real, e.Point) {
			continue
		}
		target := e.Point
		if real != "/" {
			target = strings.TrimSuffix(dir, "/") + strings.TrimPrefix(e.Point, real)
		}
		mounts = append(mounts, host.Mount{Source: e.Source, Target: target, Type: e.FSType, Options: strings.Split(e.Options, ",")})
	}
	slices.SortStableFunc(mounts, func(a, b host.Mount) int {
		return strings.Count(b.Target, "/") - strings.Count(a.Target, "/")
	})
	return mounts
}
