package hostcheck

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const (
	socket     = "/run/containerd/containerd.sock"
	crioSocket = "/run/crio/crio.sock"
)

// fakeMachine answers from memory.
type fakeMachine struct {
	files   map[string]string
	dirs    map[string][]string
	id      string
	drivers string
	disk    string // of df -k
	facts   host.Facts
	offset  time.Duration
	calls   int
	dies    int // after this many calls it does not answer; 0: never
}

func (m *fakeMachine) call() error {
	if m.calls++; m.dies > 0 && m.calls > m.dies {
		return fmt.Errorf("no answer from 10.0.0.7:22 for 9 s: %w", host.ErrUnreachable)
	}
	return nil
}

func (m *fakeMachine) ReadFile(_ context.Context, path string, _ int64) ([]byte, error) {
	data, has := m.files[path]
	if err := m.call(); err != nil {
		return nil, err
	}
	if !has {
		return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.ENOENT}
	}
	return []byte(data), nil
}

func (m *fakeMachine) List(_ context.Context, dir string) (infos []host.FileInfo, err error) {
	for _, name := range m.dirs[dir] {
		infos = append(infos, host.FileInfo{Name: name})
	}
	return infos, m.call()
}

func (m *fakeMachine) Run(_ context.Context, c host.Command) (host.Result, error) {
	if c.Timeout <= 0 {
		return host.Result{}, errors.New("no timeout")
	}
	if err := m.call(); err != nil {
		return host.Result{}, err
	}
	say := func(format string, args ...any) (host.Result, error) {
		return host.Result{Stdout: fmt.Appendf(nil, format, args...)}, nil
	}
	switch line := strings.Join(c.Args, " "); {
	case len(c.Args) > 2 && c.Args[2] == scriptID:
		return say("%s", m.id)
	case len(c.Args) > 2 && c.Args[2] == scriptDrivers:
		return say("%s", m.drivers)
	case c.Args[0] == "readlink":
		return say("%s\n", c.Args[2])
	case c.Args[0] == "test":
		return host.Result{}, nil
	case strings.HasPrefix(line, "df -P -k"):
		return say("Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda1 %s 50%% /\n", m.disk)
	case strings.HasPrefix(line, "df -P -i"):
		return say("Filesystem Inodes IUsed IFree IUse%% Mounted on\n/dev/vda1 1000 100 900 10%% /\n")
	}
	return host.Result{ExitCode: 1, Stderr: []byte("what?")}, nil
}

func (m *fakeMachine) Facts(context.Context) (host.Facts, error) { return m.facts, m.call() }
func (m *fakeMachine) ClockOffset(context.Context) (time.Duration, time.Duration, error) {
	return m.offset, time.Millisecond, m.call()
}
func (m *fakeMachine) Close() error { return nil }

// fakeWay leads to a fakeMachine with a fake runtime.
type fakeWay struct {
	hop     hop
	machine *fakeMachine
	tools   error
	runtime *fake.Runtime
}

var target = &endpoint.Target{Name: "10.0.0.7", Address: "10.0.0.7:22", HostKeyName: "10.0.0.7:22", User: "root",
	Credentials: endpoint.Credentials{KeyFile: "/keys/id"}}

func (w *fakeWay) come(_ context.Context, r *Report) bool {
	r.add(checkHop(target.Address, target, w.hop)...)
	return w.hop.err == nil
}
func (w *fakeWay) open(context.Context, bool) (Machine, error) {
	if w.tools != nil {
		return nil, w.tools
	}
	return w.machine, nil
}
func (w *fakeWay) dial(ctx context.Context, _ string) (net.Conn, error) {
	if w.runtime == nil {
		return nil, errors.New("open failed")
	}
	return w.runtime.Dial(ctx)
}
func (w *fakeWay) close() {}

func hostKey(t *testing.T) ssh.PublicKey {
	t.Helper()
	s, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(make([]byte, 32)))
	testutil.Must(t, err)
	return s.PublicKey()
}

// allWell is a machine that can become a node.
func allWell(t *testing.T) *fakeWay {
	t.Helper()
	m := &fakeMachine{
		files: map[string]string{"/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids\n",
			"/proc/self/mountinfo": "21 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"},
		dirs:  map[string][]string{},
		id:    "root\n0\nroot\n\nroot root 660\n",
		disk:  "104857600 52428800 52428800",
		facts: host.Facts{CgroupVersion: 2},
	}
	for _, s := range sysctls {
		m.files[s.path()] = s.want + "\n"
	}
	return &fakeWay{hop: hop{dialed: true, took: 1200 * time.Microsecond, key: hostKey(t)}, machine: m, runtime: fake.Run(t, fake.Config{})}
}

const record = `{"clusterUID": "c-1", "nodeName": "n-1", "instance": "i-1", "pid": 77, "startedAt": "2026-01-02T03:04:05Z", "version": "v1"}`

func halfWrong(t *testing.T) *fakeWay {
	w := allWell(t)
	m := w.machine
	m.id = "alice\n1000\nalice docker\nsudo\nroot docker 660\n"
	m.offset = -5 * time.Second
	m.disk = "104857600 99000000 5857600"
	m.facts.SwapBytes = 2 << 30
	m.facts.SELinux, m.facts.SELinuxEnforcing = true, true
	m.files["/proc/self/mountinfo"] = "21 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n"
	m.files["/proc/sys/net/ipv4/ip_forward"] = "0\n"
	m.files["/proc/sys/kernel/panic"] = "0\n"
	delete(m.files, "/proc/sys/net/bridge/bridge-nf-call-iptables")
	lock := "/var/lib/kubelet/bowline/owner.lock"
	m.files[lock] = record
	m.drivers = "kubelet 812\nheld 77 " + lock + "\n"
	m.dirs["/etc/cni/net.d"] = []string{"10-net.conflist", "README"}
	m.dirs["/opt/cni/bin"] = []string{"loopback"}
	m.files["/etc/cni/net.d/10-net.conflist"] = `{"plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}]}`
	w.runtime.SetCondition(runtimeapi.NetworkReady, false, "NetworkPluginNotReady", "cni plugin not initialized")
	return w
}

// docker is a machine as Docker's package sets it up.
func docker(t *testing.T) *fakeWay {
	return dockerWith(t, status.Error(codes.Unimplemented, "unknown service"))
}

// dockerWith is docker with another answer of the socket.
func dockerWith(t *testing.T, fault error) *fakeWay {
	w := allWell(t)
	w.machine.files[containerdConfig] = "disabled_plugins = [\"cri\"]\n#root = \"/var/lib/containerd\"\n"
	w.runtime.Inject("Version", fake.Fault{Before: fault, Times: -1})
	return w
}

// TestAnotherContainerdIsLeftAlone: the machine has Docker's containerd, but the endpoint is
// another runtime, which does not answer. Nothing of containerd is read, or offered as a fix.
func TestAnotherContainerdIsLeftAlone(t *testing.T) {
	for _, path := range []string{crioSocket, "/run/k3s/containerd/containerd.sock"} {
		for _, fault := range []error{status.Error(codes.Unimplemented, "unknown service"), status.Error(codes.Internal, "broken")} {
			w := dockerWith(t, fault)
			report, found := look(t.Context(), Config{Socket: path, RootDir: "/var/lib/kubelet"}, w, false)
			if text := report.Text(false); found.Config != nil || strings.Contains(text, "systemctl restart containerd") || strings.Contains(text, "disabled_plugins") {
				t.Errorf("%s, %v: the configuration %q, and the report\n%s", path, fault, found.Config, text)
			}
		}
	}
	w := dockerWith(t, status.Error(codes.Internal, "broken"))
	if _, found := look(t.Context(), Config{Socket: socket, RootDir: "/var/lib/kubelet"}, w, false); found.Config != nil {
		t.Errorf("containerd serves CRI, and its configuration was read to enable that: %q", found.Config)
	}
}

// TestPolled: the node relists a runtime without events each second, which the report says.
func TestPolled(t *testing.T) {
	for _, c := range []struct {
		events bool
		level  Level
		words  string
	}{{true, OK, ""}, {false, Warning, "enable_pod_events = true"}} {
		w := allWell(t)
		w.runtime = fake.Run(t, fake.Config{NoEvents: true, CRIEvents: c.events})
		r, _ := look(t.Context(), Config{Socket: crioSocket, RootDir: "/var/lib/kubelet"}, w, false)
		worst := OK
		for _, l := range r.Lines {
			if l.Subject == Runtime && l.Level != OK {
				worst = l.Level
			}
		}
		if text := r.Text(false); worst != c.level || !strings.Contains(text, c.words) || !r.Fit {
			t.Errorf("events %v:\n%s", c.events, text)
		}
	}
}

func TestRun(t *testing.T) {
	for _, c := range []struct {
		name string
		way  *fakeWay
	}{
		{"well", allWell(t)},
		{"half-wrong", halfWrong(t)},
		{"docker", docker(t)},
		{"unreachable", &fakeWay{hop: hop{err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, _ := look(t.Context(), Config{Endpoint: "ssh://root@10.0.0.7" + socket, Socket: socket, RootDir: "/var/lib/kubelet"}, c.way, false)
			text := r.Text(false)
			for line := range strings.Lines(text) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
					t.Errorf("%d columns: %s", n, line)
				}
			}
			data, err := json.MarshalIndent(r, "", "  ")
			testutil.Must(t, err)
			golden(t, c.name+".txt", []byte(text))
			golden(t, c.name+".json", append(data, '\n'))
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		testutil.Must(t, os.WriteFile(file, got, 0o644))
	}
	want, err := os.ReadFile(file)
	testutil.Must(t, err)
	if string(want) != string(got) {
		t.Errorf("%s (rewritten by -update):\n%s", name, got)
	}
}

// TestGone: whichever call a machine dies at, one failure says so, and no more requests follow.
func TestGone(t *testing.T) {
	w := allWell(t)
	cfg := Config{Socket: socket, RootDir: "/var/lib/kubelet"}
	look(t.Context(), cfg, w, false)
	all := w.machine.calls
	if all < 10 {
		t.Fatalf("only %d calls", all)
	}
	for n := 1; n < all; n++ {
		w.machine.calls, w.machine.dies = 0, n
		r, _ := look(t.Context(), cfg, w, false)
		if r.Fit || r.count(Failure) != 1 || r.count(Warning) != 0 || len(r.Lines)+len(r.NotLookedAt) < len(remoteSubjects) {
			t.Errorf("dies after %d calls:\n%s", n, r.Text(false))
		}
		if w.machine.calls != n+1 {
			t.Errorf("%d calls of a machine that died at call %d", w.machine.calls, n+1)
		}
	}
}

func TestWithoutTools(t *testing.T) {
	w := allWell(t)
	w.tools = errors.New("10.0.0.7: the machine lacks flock, setsid: install coreutils, findutils and util-linux")
	r, _ := look(t.Context(), Config{Socket: socket, RootDir: "/var/lib/kubelet"}, w, false)
	if r.Fit || r.count(Failure) != 1 || strings.Join(r.NotLookedAt, " ") != "rights cgroups clock disk sysctls swap propagation SELinux driver" {
		t.Errorf("got\n%s", r.Text(false))
	}
}

func TestColour(t *testing.T) {
	r := &Report{Lines: []Line{ok(Runtime, "x"), {Warning, Disk, "y", ""}, {Failure, Swap, "z", "do"}}}
	text := r.Text(true)
	for _, want := range []string{"\033[32mok     \033[0m", "\033[33mwarning", "\033[31mfailure"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, text)
		}
	}
	for _, code := range []string{"\033[32m", "\033[33m", "\033[31m", reset} {
		text = strings.ReplaceAll(text, code, "")
	}
	if text != r.Text(false) {
		t.Errorf("colour changes the columns: %q", text)
	}
}

// FuzzText: what a machine prints stays in its line, and is printable.
func FuzzText(f *testing.F) {
	for _, s := range []string{"\x1b[2J", "a\nok       login", "a\tb", "\u202e", "\u2028", "\xff"} {
		f.Add(s)
	}
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		r := &Report{Endpoint: s, Lines: []Line{{Warning, Disk, s, s}}, NotLookedAt: []string{s}}
		text := r.Text(false)
		if strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) >= 0 {
			t.Errorf("%q: %q", s, text)
		}
		// Each line is the endpoint, one of ours, or is indented.
		for i, l := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
			if i > 0 && l != "" && !strings.HasPrefix(l, strings.Repeat(" ", indent-len("fix:  "))) && !strings.HasPrefix(l, "warning  disk ") &&
				!strings.HasPrefix(l, "not looked at") && l != r.summary() {
				t.Errorf("%q: the line %q", s, l)
			}
		}
	})
}
