package local

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mountEntry is one line of proc_pid_mountinfo(5).
type mountEntry struct {
	device   string // major:minor
	root     string // of the mount within its file system
	point    string
	options  []string // of the mount
	fsType   string
	source   string
	superOpt []string // of the file system
}

func readMountInfo() ([]mountEntry, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMountInfo(data)
}

// parseMountInfo returns the mounts in the kernel's order: a later one at the
// same point covers an earlier one.
func parseMountInfo(data []byte) ([]mountEntry, error) {
	var entries []mountEntry
	for line := range bytes.Lines(data) {
		text := strings.TrimRight(string(line), "\n")
		if text == "" {
			continue
		}
		// 36 35 98:0 /root /point rw,noatime shared:1 - ext3 /dev/root rw,errors=continue
		before, after, ok := strings.Cut(text, " - ")
		left, right := strings.Split(before, " "), strings.Split(after, " ")
		if !ok || len(left) < 6 || len(right) < 2 {
			return nil, fmt.Errorf("mountinfo: cannot read the line %q", text)
		}
		e := mountEntry{
			device:  left[2],
			root:    unescapeMount(left[3]),
			point:   unescapeMount(left[4]),
			options: strings.Split(left[5], ","),
			fsType:  right[0],
			source:  unescapeMount(right[1]),
		}
		if len(right) > 2 {
			e.superOpt = strings.Split(right[2], ",")
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

// resolve follows the links in all of path that exists, as the kernel did when
// something was mounted there: mountinfo knows no links.
func resolve(path string) string {
	path = filepath.Clean(path)
	if r, err := filepath.EvalSymlinks(path); err == nil {
		return r
	}
	dir, base := filepath.Split(path)
	if dir == path || base == "" {
		return path
	}
	return filepath.Join(resolve(dir), base)
}

// below says whether p is dir or inside it.
func below(dir, p string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}
