// Package machine has what the host.Host implementations share about Linux: how to read the
// files of /proc and what follows from them. It does no I/O.
package machine

import (
	"bufio"
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/bowline-k8s/bowline/host"
)

// ParseMountInfo returns the mounts in the kernel's order: a later one covers an earlier one at
// the same point.
func ParseMountInfo(data []byte) ([]*mountinfo.Info, error) {
	for line := range bytes.Lines(data) {
		if len(line) >= bufio.MaxScanTokenSize { // too long for the parser's scanner
			var l MountLines
			_, _ = l.Write(data)
			return l.Parse("")
		}
	}
	return mountinfo.GetMountsFromReader(bytes.NewReader(data), nil)
}

const (
	// maxField is the number of bytes of a field of mountinfo that MountLines keeps: more than a
	// path of PATH_MAX with ordinary names. A line with four such fields still fits into the
	// parser's scanner.
	maxField = 12 << 10
	// maxKept is the memory that Reset keeps: enough for the mounts of a node.
	maxKept = 1 << 20
)

// MountLines is an io.Writer for the content of mountinfo. It cuts long fields: an overlay may have
// hundreds of layers in its options, and a pod can move a directory that is mounted, which is the
// root of the mount, as deep as it likes. The zero value is empty.
type MountLines struct {
	kept  []byte
	field int  // where the last field begins in kept
	cut   bool // the last field is longer than maxField
}

// Write implements io.Writer. It never fails.
func (l *MountLines) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		end := bytes.IndexAny(rest, " \n")
		part := rest
		if end >= 0 {
			part = rest[:end]
		}
		if room := maxField - (len(l.kept) - l.field); len(part) > room {
			part, l.cut = part[:room], true
		}
		l.kept = append(l.kept, part...)
		if end < 0 {
			break
		}
		l.end()
		l.kept = append(l.kept, rest[end])
		l.field, rest = len(l.kept), rest[end+1:]
	}
	return len(p), nil
}

// end cuts the last field, if it was too long, at the end of a name or an option. So no escape is
// split, and a mount stays below the directories that it is in.
func (l *MountLines) end() {
	if l.cut {
		l.kept = l.kept[:l.field+max(bytes.LastIndexAny(l.kept[l.field:], "/,"), 0)]
	}
	l.cut = false
}

// Parse returns the mounts of what was written, as ParseMountInfo does: all of them if name is empty,
// and otherwise at least those with this name in their path or type. To parse a line costs far more than
// to search it.
func (l *MountLines) Parse(name string) ([]*mountinfo.Info, error) {
	l.end()
	if name == "" || strings.ContainsAny(name, " \t\n\\#") { // mountinfo shows these as escapes
		return mountinfo.GetMountsFromReader(bytes.NewReader(l.kept), nil)
	}
	with := l.kept[:0]
	for line := range bytes.Lines(l.kept) {
		if bytes.Contains(line, []byte(name)) {
			with = append(with, line...)
		}
	}
	l.kept = with
	return mountinfo.GetMountsFromReader(bytes.NewReader(with), nil)
}

// Reset makes l empty. It keeps the memory for the next lines, unless that is unusually much.
func (l *MountLines) Reset() {
	if cap(l.kept) > maxKept {
		l.kept = nil
	}
	*l = MountLines{kept: l.kept[:0]}
}

// Propagates reports whether mounts below e propagate to other mount namespaces.
func Propagates(e *mountinfo.Info) bool {
	return strings.Contains(" "+e.Optional, " shared:")
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

// Below reports whether p is dir or inside it.
func Below(dir, p string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// CheckBelow returns an error if one of the paths is not below dir.
func CheckBelow(dir string, paths []string) error {
	for _, p := range paths {
		if p = path.Clean(p); p == dir || !Below(dir, p) {
			return fmt.Errorf("%s is not below %s", p, dir)
		}
	}
	return nil
}

// MountOf returns the mount that contains path; nil if there is none. path must not contain
// links.
func MountOf(entries []*mountinfo.Info, path string) *mountinfo.Info {
	var of *mountinfo.Info
	for _, e := range entries {
		if Below(e.Mountpoint, path) && (of == nil || len(e.Mountpoint) >= len(of.Mountpoint)) {
			of = e
		}
	}
	return of
}

// MountsBelow returns the mounts at and below dir, deepest first, and of stacked mounts the top
// one first. real is dir with links resolved, as mountinfo has it; the targets begin with dir.
func MountsBelow(dir, real string, entries []*mountinfo.Info) []host.Mount {
	var mounts []host.Mount
	// Backwards, because the last mount is on top.
	for _, e := range slices.Backward(entries) {
		if !Below(real, e.Mountpoint) {
			continue
		}
		target := e.Mountpoint
		if real != "/" {
			target = strings.TrimSuffix(dir, "/") + strings.TrimPrefix(e.Mountpoint, real)
		}
		mounts = append(mounts, host.Mount{Source: e.Source, Target: target, Type: e.FSType, Options: strings.Split(e.Options, ",")})
	}
	slices.SortStableFunc(mounts, func(a, b host.Mount) int {
		return strings.Count(b.Target, "/") - strings.Count(a.Target, "/")
	})
	return mounts
}
