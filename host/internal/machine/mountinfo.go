// Package machine is what every host.Host knows of Linux machines: how their files
// under /proc are read, and what is decided of them. Nothing here touches one.
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
	Options      []string // of the mount
	Shared       bool     // what is mounted below is seen in other namespaces
	FSType       string
	Source       string
	SuperOptions []string // of the file system
}

// ParseMountInfo returns the mounts in the kernel's order: a later one at the
// same point covers an earlier one.
func ParseMountInfo(data []byte) ([]MountEntry, error) {
	var entries []MountEntry
	for line := range bytes.Lines(data) {
		text := strings.TrimRight(string(line), "\n")
		if text == "" {
			continue
		}
		// 36 35 98:0 /root /point rw,noatime shared:1 - ext3 /dev/root rw,errors=continue
		before, after, ok := strings.Cut(text, " - ")
		left, right := strings.Split(before, " "), strings.Split(after, " ")
		if !ok || len(left) < 6 || len(right) < 2 || !strings.HasPrefix(left[4], "/") {
			return nil, fmt.Errorf("mountinfo: cannot read the line %q", text)
		}
		e := MountEntry{
			Device:  left[2],
			Root:    unescapeMount(left[3]),
			Point:   unescapeMount(left[4]),
			Options: strings.Split(left[5], ","),
			FSType:  right[0],
			Source:  unescapeMount(right[1]),
		}
		e.Shared = slices.ContainsFunc(left[6:], func(field string) bool { return strings.HasPrefix(field, "shared:") })
		if len(right) > 2 {
			e.SuperOptions = strings.Split(right[2], ",")
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// unescapeMount undoes the kernel's \ooo of blanks and backslashes.
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

// Below says whether p is dir or inside it.
func Below(dir, p string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// MountOf is the mount that shows path, which has no links; nil if there is none.
func MountOf(entries []MountEntry, path string) *MountEntry {
	var of *MountEntry
	for i := range entries {
		if e := &entries[i]; Below(e.Point, path) && (of == nil || len(e.Point) >= len(of.Point)) {
			of = e
		}
	}
	return of
}

// MountsBelow are the mounts at and below dir, deepest first, what is on top
// before what it covers. real is dir without links, which mountinfo knows none of;
// the targets are named by dir.
func MountsBelow(dir, real string, entries []MountEntry) []host.Mount {
	var mounts []host.Mount
	// Backwards: what was mounted last, and so on top, comes first.
	for _, e := range slices.Backward(entries) {
		if !Below(real, e.Point) {
			continue
		}
		target := e.Point
		if real != "/" {
			target = strings.TrimSuffix(dir, "/") + strings.TrimPrefix(e.Point, real)
		}
		mounts = append(mounts, host.Mount{Source: e.Source, Target: target, Type: e.FSType, Options: e.Options})
	}
	slices.SortStableFunc(mounts, func(a, b host.Mount) int {
		return strings.Count(b.Target, "/") - strings.Count(a.Target, "/")
	})
	return mounts
}
