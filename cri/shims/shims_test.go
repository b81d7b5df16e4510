package shims

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/test/corpus"
)

const address = "/run/containerd/containerd.sock"

// machine is a host and its runtime, in memory.
type machine struct {
	sockets   []string          // names
	noDir     bool              // the socket directory does not exist
	processes map[string]string // words of the command line, by process ID
	reused    map[string]string // the same, from the second read of a process on
	sandboxes []string
	records   []string
	refuses   bool // kill fails
	down      error

	looked  map[string]int
	killed  []string
	removed []string
}

func (m *machine) List(_ context.Context, dir string) ([]host.FileInfo, error) {
	var names []string
	switch {
	case dir == SocketDir && m.noDir:
		return nil, fs.ErrNotExist
	case dir == SocketDir:
		names = m.sockets
	case dir == "/proc":
		names = []string{"self", "cpuinfo"}
		for pid := range m.processes {
			names = append(names, pid)
		}
	}
	slices.Sort(names)
	var files []host.FileInfo
	for _, n := range names {
		files = append(files, host.FileInfo{Name: n})
	}
	return files, m.down
}

func (m *machine) ReadFile(_ context.Context, file string, _ int64) ([]byte, error) {
	pid := path.Base(path.Dir(file))
	if m.looked[pid]++; m.looked[pid] > 1 && m.reused[pid] != "" {
		m.processes[pid] = m.reused[pid]
	}
	words, ok := m.processes[pid]
	if !ok || file != "/proc/"+pid+"/cmdline" {
		return nil, fs.ErrNotExist
	}
	return []byte(strings.ReplaceAll(words, " ", "\x00") + "\x00"), nil
}

func (m *machine) Remove(_ context.Context, file string) error {
	m.removed = append(m.removed, file)
	return nil
}

func (m *machine) Run(_ context.Context, c host.Command) (host.Result, error) {
	if m.refuses {
		return host.Result{ExitCode: 1, Stderr: []byte("not permitted\n")}, nil
	}
	if !slices.Equal(c.Args[:2], []string{"kill", "-KILL"}) {
		return host.Result{}, errors.New("unknown command")
	}
	m.killed = append(m.killed, c.Args[2])
	return host.Result{}, nil
}

func (m *machine) ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	var list []*runtimeapi.PodSandbox
	for _, id := range m.sandboxes {
		list = append(list, &runtimeapi.PodSandbox{Id: id})
	}
	return list, nil
}

func (m *machine) HasRecord(_ context.Context, id string) (bool, error) {
	return slices.Contains(m.records, id), nil
}

func words(namespace, id, address string) string {
	return "/usr/bin/containerd-shim-runc-v2 -namespace " + namespace + " -id " + id + " -address " + address
}

func TestReap(t *testing.T) {
	sock := func(id string) string { return socketName(address, id) }
	for _, c := range []struct {
		name    string
		m       machine
		want    Result
		removed []string
		fails   string
	}{
		{name: "another runtime", m: machine{noDir: true}},
		{name: "all known", m: machine{sockets: []string{sock("a")}, sandboxes: []string{"a"},
			processes: map[string]string{"7": words("k8s.io", "a", address)}}},
		{name: "forgotten", m: machine{sockets: []string{sock("a"), sock("b")}, sandboxes: []string{"a"}, records: []string{"a"},
			processes: map[string]string{"7": words("k8s.io", "a", address), "8": words("k8s.io", "b", address)}},
			want: Result{Ended: []string{"b"}}, removed: []string{SocketDir + "/" + sock("b")}},
		{name: "about to be started", m: machine{sockets: []string{sock("a")}, records: []string{"a"},
			processes: map[string]string{"7": words("k8s.io", "a", address)}}, want: Result{Starting: 1}},
		{name: "of another namespace", m: machine{sockets: []string{sock("a"), "f00"},
			processes: map[string]string{"7": words("moby", "a", address)}}},
		{name: "of another containerd", m: machine{sockets: []string{sock("a"), socketName("/run/other.sock", "a")},
			processes: map[string]string{"7": words("k8s.io", "a", "/run/other.sock")}}},
		{name: "its socket is not here", m: machine{sockets: []string{sock("a")},
			processes: map[string]string{"7": words("k8s.io", "b", address)}}},
		{name: "not a shim", m: machine{sockets: []string{sock("a")},
			processes: map[string]string{"7": "vi -namespace k8s.io -id a -address " + address, "8": ""}}},
		{name: "ended meanwhile", m: machine{sockets: []string{sock("a")},
			processes: map[string]string{"7": words("k8s.io", "a", address)}, reused: map[string]string{"7": "sh"}}},
		{name: "the kill is refused", m: machine{sockets: []string{sock("a")}, refuses: true,
			processes: map[string]string{"7": words("k8s.io", "a", address)}},
			fails: "shim of containerd with process ID 7: kill it: not permitted"},
		{name: "the machine does not answer", m: machine{down: host.ErrUnreachable}, fails: "look for orphaned shims: host unreachable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &c.m
			m.looked = map[string]int{}
			r := &Reaper{Machine: m, Runtime: m, Address: address}
			got, err := r.Reap(t.Context())
			if text := ""; err != nil || c.fails != "" {
				if err != nil {
					text = err.Error()
				}
				if text != c.fails {
					t.Errorf("error %q, want %q", text, c.fails)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("result, want - and got +:\n%s", diff)
			}
			if len(m.killed) != len(c.want.Ended) || !slices.Equal(m.removed, c.removed) {
				t.Errorf("killed %v, removed %v", m.killed, m.removed)
			}
		})
	}
}

func TestParseArgs(t *testing.T) {
	line := "/bin/containerd-shim-runc-v2\x00-namespace\x00k8s.io\x00--id\x00x y\x00-address\x00/s\x00start\x00"
	want := args{program: "/bin/containerd-shim-runc-v2", namespace: "k8s.io", id: "x y", address: "/s"}
	if got := parseArgs([]byte(line)); got != want || !got.isShim() {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func FuzzParseArgs(f *testing.F) {
	f.Add([]byte("containerd-shim-runc-v2\x00-id\x00a\x00"))
	f.Add([]byte("-id"))
	f.Add([]byte{})
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, line []byte) {
		a := parseArgs(line)
		for _, word := range []string{a.program, a.id, a.namespace, a.address} {
			if strings.Contains(word, "\x00") || !strings.Contains(string(line), word) {
				t.Errorf("%s is not a word of the line", strconv.Quote(word))
			}
		}
	})
}
