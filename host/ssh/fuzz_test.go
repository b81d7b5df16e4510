package ssh

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
	"github.com/bowline-k8s/bowline/test/corpus"
)

func FuzzParseMeasured(f *testing.F) {
	f.Add([]byte("lines\x00/proc/loadavg:0.1 0.1 0.1 1/200 5\n/proc/sys/kernel/pid_max:32768\n/proc/meminfo:MemTotal: 5 kB\n/proc/meminfo:MemFree: 2 kB\n" +
		"/proc/vmstat:oom_kill 3\n/rootcg/memory.stat:total_inactive_file 5\n/rootcg/memory.usage_in_bytes:900\n/cgroup/memory.max:900\n/cgroup/memory.current:500\n" +
		"/cgroup/memory.stat:inactive_file 7\n\x00devices\x002049\n\x00disks\x004096 100 50 10 5\n\x00"))
	f.Add([]byte("lines\x00/proc/meminfo:MemTotal: 5 kB\n\x00devices\x001\n\x00disks\x009223372036854775807 9223372036854775807 3 4 5\n\x00"))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		for version := range 3 {
			m, err := parseMeasured(data, version, "/rootcg", "/cgroup", 1)
			if err != nil {
				continue
			}
			for _, fs := range m.FileSystems {
				if fs.Bytes < 0 || fs.FreeBytes < 0 || fs.Inodes < 0 || fs.InodesFree < 0 {
					t.Errorf("a file system of negative size: %+v", fs)
				}
			}
			if m.MemoryBytes < 0 || m.WorkingSetBytes < 0 || m.Pids < 0 || m.PidsMax < 0 || m.OOMKills < -1 {
				t.Errorf("negative: %+v", m)
			}
		}
	})
}

func FuzzParseSampled(f *testing.F) {
	f.Add([]byte("counters\x00U 5.5 1\nM 1000 500 - 0\n+eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n=\nc 1 2 3 4 5 6 7 8\n=/kubepods/pod1\nm 5\no 12 3 -\n@/kubepods/pod1\n+eth0: 1\n\x00devices\x002049\n\x00disks\x004096 100 50 10 5\n\x00"))
	f.Add([]byte("counters\x00U 5\nM 1 1 1 1\n=/kubepodsx\ni 8:0 1 2 3 4 5;9\n\x00devices\x00\x00disks\x00\x00"))
	f.Add([]byte("counters\x00\x00awk\x00127\x00"))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		for version := range 3 {
			hier := machine.Hierarchies{Version: version, V2: "/c", V1: map[string]string{"cpu": "/c", "memory": "/c", "blkio": "/c"}}
			r := host.SampleRequest{Trees: []string{"/kubepods"}, Detail: true, OpenFiles: true, Paths: []string{"/"}}
			got, err := parseSampled(data, hier, r, []string{"/lab/kubepods"})
			if err != nil {
				continue
			}
			if got.Uptime <= 0 || got.MemoryBytes <= 0 || len(got.FileSystems) != 1 {
				t.Errorf("accepted: %+v", got)
			}
			for p, c := range got.Cgroups {
				if !strings.HasPrefix(p, "/kubepods") || c.Memory.Usage < host.Unknown || c.CPU.Usage < host.Unknown {
					t.Errorf("%s: %+v", p, c)
				}
			}
		}
	})
}

func FuzzParseUsages(f *testing.F) {
	f.Add([]byte("12 3\n4\t5\n"))
	f.Add([]byte("9223372036854775807 -1\n0 0"))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		usages, err := parseUsages(data, 2)
		if err == nil && len(usages) != 2 {
			t.Errorf("%d usages of 2", len(usages))
		}
		for _, u := range usages {
			if u.Bytes < 0 || u.Inodes < 0 {
				t.Errorf("negative: %+v", u)
			}
		}
	})
}

func FuzzParseState(f *testing.F) {
	f.Add("x41ed 4096 6 2049 0 1700000001 d 05:37:04.8 +0000")
	f.Add("f 644 1 2 3 0 4.5")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		if i, err := parseState(s); err == nil && i.Size < 0 {
			t.Errorf("%q has %d bytes", s, i.Size)
		}
	})
}

func FuzzParseNames(f *testing.F) {
	f.Add([]byte("b\x00a\x00a\x00"))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		names := parseNames(data)
		if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
			t.Errorf("%q", names)
		}
	})
}

func FuzzParseSizes(f *testing.F) {
	f.Add([]byte("f-o\n5\n"), 3)
	f.Add([]byte("ff\n5\n6\n"), 2)
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte, paths int) {
		paths = max(min(paths, 500), 0)
		sizes, err := parseSizes(data, paths)
		if err != nil {
			return
		}
		if len(sizes) != paths {
			t.Errorf("%d sizes for %d paths", len(sizes), paths)
		}
		for _, size := range sizes {
			if size < 0 && size != host.NoFile {
				t.Errorf("size %d", size)
			}
		}
	})
}

// FuzzFailure: the error output of a script becomes one bounded line.
func FuzzFailure(f *testing.F) {
	f.Add([]byte("cat: /x: No such file or directory\n"), 1)
	f.Add([]byte("\xff\n\n"), 137)
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, stderr []byte, code int) {
		err := failure("read", "/x", shell.Result{Stderr: stderr, Code: code})
		if text := err.Error(); len(text) > 3000 || strings.Contains(messages(stderr), "\n") {
			t.Errorf("%d bytes: %.300q", len(text), text)
		}
	})
}

// FuzzSkipTo: skipTo reads up to the mark and not beyond, or fails.
func FuzzSkipTo(f *testing.F) {
	f.Add("motd\nnonce starts\nrest", "nonce starts\n")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s, mark string) {
		if mark == "" {
			return
		}
		a := budget.New(budget.Limits{OutputBytes: 100})
		r := strings.NewReader(s)
		err := skipTo(r, mark, a, "the test")
		at := strings.Index(s, mark)
		var much *budget.ExceededError
		switch {
		case err == nil && (at < 0 || s[at+len(mark):] != s[len(s)-r.Len():]):
			t.Errorf("%q is left behind %q", s[len(s)-r.Len():], mark)
		case err != nil && at >= 0 && at+len(mark) <= 100:
			t.Errorf("%q was not found: %v", mark, err)
		case errors.As(err, &much) && len(s) <= 100:
			t.Errorf("%d bytes were too many", len(s))
		}
	})
}

// FuzzParseBusy: the users of a mount are a few bounded lines.
func FuzzParseBusy(f *testing.F) {
	f.Add([]byte("ext4\n/dev/sdb\n42 (postgres)\n43 (sh)\n"))
	f.Add([]byte("\xff\n\n\x1b[2J"))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, out []byte) {
		e := parseBusy("/x", out)
		if len(e.Users) > machine.MaxBusyUsers {
			t.Errorf("%d users", len(e.Users))
		}
		for _, text := range append(e.Users, e.Type, e.Source) {
			if len(text) > 128 || !utf8.ValidString(text) || strings.Contains(text, "\n") {
				t.Errorf("%q", text)
			}
		}
	})
}
