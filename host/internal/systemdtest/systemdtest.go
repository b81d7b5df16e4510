// Package systemdtest is a fake systemd that records the calls to it: a busctl, and a directory
// with the files of a cgroup2 mount. The host suite on a real systemd (test/vm) shows that the
// real one behaves the same.
package systemdtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// busctl keeps units as files and, like systemd, creates and removes their cgroups.
const busctl = `#!/bin/sh
set -eu
here=HERE
printf '%s\n' "$*" | sed -e 's/.*Manager //' >>"$here/calls"
[ ! -e "$here/broken" ] || { echo 'Call failed: Connection refused' >&2; exit 1; }
case $7 in
StartTransientUnit)
	[ ! -e "$here/units/$9" ] || { echo "Call failed: Unit $9 was already loaded or has a fragment file." >&2; exit 1; }
	: >"$here/units/$9"
	dir=$here/tree name= IFS=-
	for part in ${9%.slice}; do
		name=$name$part dir=$dir/$name.slice name=$name-
		mkdir -p "$dir"
		for f in cgroup.controllers cgroup.subtree_control cgroup.procs cpu.weight cpu.max memory.max pids.max; do
			[ -e "$dir/$f" ] || cp "$here/tree/$f" "$dir/$f"
		done
	done
	;;
SetUnitProperties) [ -e "$here/units/$9" ] ;;
StopUnit)
	[ -e "$here/units/$9" ] || { echo "Call failed: Unit $9 not loaded." >&2; exit 1; }
	rm "$here/units/$9"
	find "$here/tree" -depth -type d -name "$9" -exec rm -rf {} +
	;;
esac
`

// Systemd is the fake.
type Systemd struct {
	Bin  string // for PATH
	Tree string // the mount point
	dir  string
	t    *testing.T
}

// New makes a fake without units.
func New(t *testing.T) *Systemd {
	t.Helper()
	dir := t.TempDir()
	s := &Systemd{Bin: filepath.Join(dir, "bin"), Tree: filepath.Join(dir, "tree"), dir: dir, t: t}
	for _, d := range []string{s.Bin, s.Tree, filepath.Join(dir, "units")} {
		testutil.Must(s.t, os.Mkdir(d, 0o755))
	}
	testutil.Must(s.t, os.WriteFile(filepath.Join(s.Bin, "busctl"), []byte(strings.ReplaceAll(busctl, "HERE", dir)), 0o755))
	for file, content := range map[string]string{"cgroup.controllers": "cpu io memory pids misc\n", "cgroup.subtree_control": "", "cgroup.procs": "",
		"cpu.weight": "100\n", "cpu.max": "max 100000\n", "memory.max": "max\n", "pids.max": "max\n"} {
		testutil.Must(s.t, os.WriteFile(filepath.Join(s.Tree, file), []byte(content), 0o644))
	}
	return s
}

// Calls returns the calls since the last time, as method, signature and arguments.
func (s *Systemd) Calls() []string {
	data, err := os.ReadFile(filepath.Join(s.dir, "calls"))
	if os.IsNotExist(err) {
		return nil
	}
	testutil.Must(s.t, err)
	testutil.Must(s.t, os.Remove(filepath.Join(s.dir, "calls")))
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// Break makes every further call fail.
func (s *Systemd) Break() {
	testutil.Must(s.t, os.WriteFile(filepath.Join(s.dir, "broken"), nil, 0o644))
}

// Put writes a file in a cgroup.
func (s *Systemd) Put(cgroup, file, content string) {
	testutil.Must(s.t, os.WriteFile(filepath.Join(s.Tree, cgroup, file), []byte(content), 0o644))
}

// File returns the content of a file in a cgroup; empty if it does not exist.
func (s *Systemd) File(cgroup, file string) string {
	data, err := os.ReadFile(filepath.Join(s.Tree, cgroup, file))
	if !os.IsNotExist(err) {
		testutil.Must(s.t, err)
	}
	return string(data)
}
