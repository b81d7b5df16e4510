package machine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/host"
)

// processes are those of a fake /proc, by PID.
type processes map[string]process

type process struct {
	slots, files, sockets int
	limit                 string
	forbidden             bool // its files cannot be read
}

func (p processes) Read(pid, file string) (string, bool, error) {
	of, ok := p[pid]
	switch {
	case !ok:
		return "", true, errors.New("no such process")
	case file == "limits":
		return "Limit  Soft Limit Hard Limit Units\nMax cpu time unlimited unlimited seconds\nMax open files            " + of.limit + "    4096   files\n", false, nil
	}
	return fmt.Sprintf("Name:\tx\nFDSize:\t%d\nVmSize: 7 kB\n", of.slots), false, nil
}

func (p processes) Files(pid string, most int) (files, sockets int, ended, ok bool) {
	of, there := p[pid]
	return of.files, of.sockets, !there, there && !of.forbidden && of.files <= most
}

func TestWalk(t *testing.T) {
	many := slices.Repeat([]string{"10\n"}, processesOfCgroup)
	proc := processes{
		"1": {64, 9, 1, "1024", false}, "10": {64, 5, 2, "1048576", false}, "11": {128, 70, 60, "unlimited", false},
		"12": {64, 5, 0, "10", true}, "13": {slotsOfCgroup + 1, 3, 0, "10", false}, "14": {slotsOfCgroup, 3, 0, "10", false},
	}
	for what, c := range map[string]struct{ procs, want string }{
		"two processes":                {"10\n11\n", "75 62 1048576"},
		"the first has no limit":       {"11\n10\n", "75 62 unlimited"},
		"no process":                   {"", "0 0 -"},
		"one has ended":                {"10\n99\n", "5 2 1048576"},
		"the only one has ended":       {"99\n", "0 0 -"},
		"one cannot be read":           {"10\n12\n", "- - 1048576"},
		"one has too many slots":       {"10\n13\n", "- - 1048576"},
		"one has just enough":          {"14\n", "3 0 10"},
		"as many processes as allowed": {strings.Join(many, ""), fmt.Sprint(5*processesOfCgroup, " ", 2*processesOfCgroup, " 1048576")},
		"one more":                     {strings.Join(many, "") + "10\n", "- - 1048576"},
		"one of another namespace":     {"10\n0\n", "- - 1048576"},
	} {
		if got := NewWalk(proc).Digest(c.procs, false); got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
	if got := NewWalk(proc).Digest("10\n", true); got != "5 2 1024" {
		t.Errorf("the root: %q, want the limit of init", got)
	}
}

// TestWalkIsBounded: all cgroups together have bounds, too.
func TestWalkIsBounded(t *testing.T) {
	known := func(procs string, p process) int {
		w := NewWalk(processes{"10": p})
		for i := range 100 {
			if w.Digest(procs, false)[0] == '-' {
				return i
			}
		}
		return -1
	}
	if n := known(strings.Repeat("10\n", processesOfCgroup), process{slots: 1}); n != processesOfSample/processesOfCgroup {
		t.Errorf("%d cgroups with %d processes each", n, processesOfCgroup)
	}
	if n := known("10\n", process{slots: slotsOfCgroup}); n != slotsOfSample/slotsOfCgroup {
		t.Errorf("%d cgroups with %d slots each", n, slotsOfCgroup)
	}
}

// TestOpenFilesOfASample: a digest that is not known says so, and one that is not asked for is not read.
func TestOpenFilesOfASample(t *testing.T) {
	for digest, want := range map[string][3]int64{
		"12 3 1024": {12, 3, 1024}, "0 0 -": {0, 0, host.Unknown}, "- - unlimited": {host.Unknown, host.Unknown, host.Unlimited},
		"1 2": {host.Unknown, host.Unknown, host.Unknown}, "x -1 1e9": {host.Unknown, host.Unknown, host.Unknown},
	} {
		for _, h := range []Hierarchies{v1, v2} {
			s := NewSample(h, host.SampleRequest{Trees: []string{"/kubepods"}, Detail: true, OpenFiles: true}, []string{"/kubepods"})
			s.Host("U", "5")
			s.Host("M", "1 1 1 1")
			s.Cgroup("/kubepods/x", "o", digest)
			got, err := s.Result()
			if c := got.Cgroups["/kubepods/x"]; err != nil || [3]int64{c.Files, c.Sockets, c.FilesMax} != want {
				t.Errorf("%q: %+v, %v", digest, c, err)
			}
		}
	}
	for _, r := range []host.SampleRequest{{Detail: true}, {OpenFiles: true}, {}} {
		_, files := SampleFiles(v2, r)
		if slices.ContainsFunc(files, func(f SampleFile) bool { return f.Digest == OpenFiles }) {
			t.Errorf("%+v reads the open files", r)
		}
	}
}
