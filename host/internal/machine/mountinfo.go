// Package machine has what the host.Host implementations share about Linux: how to read the
// files of /proc and what follows from them. It does no I/O.
package machine

import (
	"bufio"
	"bytes"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/bowline-k8s/bowline/host"
)

// ParseMountInfo returns the mounts in the kernel's order: a later one covers an earlier one at
// the same point.
func ParseMountInfo(data []byte) ([]*mountinfo.Info, error) {
	return mountinfo.GetMountsFromReader(bytes.NewReader(shorten(data)), nil)
}

// shorten keeps the first option of a file system, ro or rw, of lines that are too long for the
// parser's scanner: an overlay may have hundreds of layers as options.
func shorten(data []byte) []byte {
	for line := range bytes.Lines(data) {
		if len(line) < bufio.MaxScanTokenSize {
			continue
		}
		options := bytes.LastIndexByte(line, ' ') + 1
		if end := bytes.IndexByte(line[options:], ','); end >= 0 {
			data = bytes.Replace(data, line, append(bytes.Clone(line[:options+end]), '\n'), 1)
		}
	}
	return data
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
