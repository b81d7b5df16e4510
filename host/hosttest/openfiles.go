package hosttest

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

const podOfFiles = "/kubepods/pod11111111-2222-3333-4444-555555555555"

// OpenFiles starts processes with open files, and writes a tree that looks like a hierarchy of cgroups
// with them. It returns its directory, and checks what Sample says of the tree /kubepods there.
func OpenFiles(t *testing.T) (base string, check func(t *testing.T, got host.Sampled)) {
	base = t.TempDir()
	held := t.TempDir()
	open := func(name string) *os.File {
		at := filepath.Join(held, name)
		testutil.Must(t, os.MkdirAll(filepath.Dir(at), 0o755)) // a name may have slashes
		f, err := os.Create(at)
		testutil.Must(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	socket := func() *os.File {
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		testutil.Must(t, err)
		defer l.Close()
		f, err := l.File()
		testutil.Must(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	// The names try to look like lines of ls.
	inherited := int64(len(fdsOf(t, holding(t)))) // with the three of its own
	one := holding(t, socket(), open("x\nl 7 -> socket:[9]\nself/fd:\n"), open("x -> socket:[9]"), socket(), open("\n1/fd:\nl\nl\n"))
	ended := exec.Command("true")
	testutil.Must(t, ended.Run())
	gone := fmt.Sprintln(ended.Process.Pid)
	for at, procs := range map[string]string{
		"": holding(t), "/kubepods": "", podOfFiles: "",
		podOfFiles + "/one":    one,
		podOfFiles + "/two":    holding(t, socket()) + holding(t, open("plain")),
		podOfFiles + "/ended":  gone + holding(t),
		podOfFiles + "/hidden": "0\n" + holding(t),
		podOfFiles + "/many":   strings.Repeat(holding(t), 1025),
	} {
		testutil.Must(t, os.MkdirAll(base+at, 0o755))
		testutil.Must(t, os.WriteFile(base+at+"/cgroup.procs", []byte(procs), 0o644))
	}
	testutil.Must(t, os.MkdirAll(base+podOfFiles+"/gone", 0o755))
	return base, func(t *testing.T, got host.Sampled) {
		t.Helper()
		checkOpenFiles(t, got, inherited)
	}
}

// fdsOf returns the open files of the process in a line.
func fdsOf(t testing.TB, line string) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir("/proc/" + strings.TrimSpace(line) + "/fd")
	testutil.Must(t, err)
	return entries
}

// holding starts a process with these files, and with three of its own; it returns the line of its PID.
// The process has answered by then: before, the dynamic loader may still have a library open.
func holding(t testing.TB, files ...*os.File) string {
	t.Helper()
	cmd := exec.Command("cat")
	cmd.ExtraFiles = files
	in, err := cmd.StdinPipe()
	testutil.Must(t, err)
	out, err := cmd.StdoutPipe()
	testutil.Must(t, err)
	testutil.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	_, err = in.Write([]byte("x"))
	testutil.Must(t, err)
	_, err = io.ReadFull(out, make([]byte, 1))
	testutil.Must(t, err)
	return fmt.Sprintln(cmd.Process.Pid)
}

func checkOpenFiles(t *testing.T, got host.Sampled, inherited int64) {
	t.Helper()
	for at, want := range map[string][2]int64{
		"/one": {inherited + 5, 2}, "/two": {2*inherited + 2, 1}, "/ended": {inherited, 0}, "": {0, 0},
		"/hidden": {host.Unknown, host.Unknown}, "/many": {host.Unknown, host.Unknown},
	} {
		if c, ok := got.Cgroups[podOfFiles+at]; !ok || c.Files != want[0] || c.Sockets != want[1] {
			t.Errorf("%q: %d files and %d sockets, want %v", at, c.Files, c.Sockets, want)
		}
	}
	for at, has := range map[string]bool{"/one": true, "/two": true, "/many": true, "": false} {
		if c := got.Cgroups[podOfFiles+at]; (c.FilesMax >= 64) != has || !has && c.FilesMax != host.Unknown {
			t.Errorf("%q: a limit of %d files", at, c.FilesMax)
		}
	}
	if c, ok := got.Cgroups[podOfFiles+"/gone"]; ok && (c.Files != host.Unknown || c.FilesMax != host.Unknown) {
		t.Errorf("a cgroup that is gone: %d files, limit %d", c.Files, c.FilesMax)
	}
	if n := got.Node; n.Files < inherited || n.FilesMax < 64 {
		t.Errorf("the root: %d files, limit %d", n.Files, n.FilesMax)
	}
}

// Containers starts processes with 20 open files each, and writes a tree with one pod for each container.
// It returns its directory.
func Containers(t testing.TB, containers, processes int) (base string) {
	base = t.TempDir()
	files := make([]*os.File, 17)
	for i := range files {
		f, err := os.Open(os.DevNull)
		testutil.Must(t, err)
		t.Cleanup(func() { f.Close() })
		files[i] = f
	}
	testutil.Must(t, os.WriteFile(base+"/cgroup.procs", nil, 0o644))
	for i := range containers {
		dir := fmt.Sprintf("%s/kubepods/pod11111111-2222-3333-4444-%012d/%064d", base, i, i)
		testutil.Must(t, os.MkdirAll(dir, 0o755))
		procs := ""
		for range processes {
			procs += holding(t, files...)
		}
		testutil.Must(t, os.WriteFile(dir+"/cgroup.procs", []byte(procs), 0o644))
	}
	return base
}

// BenchmarkOpenFiles runs sample for hosts with few and with many processes, with and without counting
// their open files.
func BenchmarkOpenFiles(b *testing.B, sample func(b *testing.B, base string, r host.SampleRequest) func() error) {
	for _, c := range []struct{ containers, processes int }{{30, 1}, {1, 500}} {
		base := Containers(b, c.containers, c.processes)
		for _, files := range []bool{false, true} {
			b.Run(fmt.Sprintf("%dx%d/%v", c.containers, c.processes, files), func(b *testing.B) {
				do := sample(b, base, host.SampleRequest{Trees: []string{"/kubepods"}, Detail: true, OpenFiles: files})
				for b.Loop() {
					testutil.Must(b, do())
				}
			})
		}
	}
}
