package hostadmin

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/hostcheck"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestAddToSSHD uses a real sshd and a real login: the scan, a key that is refused, the
// installation of its line with the user's own key, a login with the new key under its
// restrictions, and the preflight check with it.
func TestAddToSSHD(t *testing.T) {
	server, rt := sshtest.Run(t), fake.Run(t, fake.Config{})
	mine, err := os.ReadFile(server.KeyFile + ".pub")
	testutil.Must(t, err)

	w := newWorld(t)
	w.Poll = time.Millisecond // real time
	var report *hostcheck.Report
	w.Reporter = &catching{Reporter: w, report: &report}
	w.Machine = func(raw string, jumps []endpoint.Jump) Machine {
		return &SSH{Endpoint: raw, Access: endpoint.Credentials{KeyFile: server.KeyFile}, Jumps: jumps}
	}
	r := request()
	r.Login, r.Socket = "root@"+server.Address, rt.Socket
	// The rest depends on this machine: check only the lines about the way.
	way := func() (faults []error) {
		for _, l := range report.Lines {
			switch l.Subject {
			case hostcheck.Reachability, hostcheck.HostKey, hostcheck.Login, hostcheck.Forwarding, hostcheck.Runtime:
				if l.Level != hostcheck.OK {
					faults = append(faults, fmt.Errorf("by the key with its restrictions: %+v", l))
				}
			}
		}
		return faults
	}
	patient(t, func() error {
		w.answers = []bool{true, true}
		if err = w.Add(w.ctx(), r); report == nil {
			return err
		}
		return errors.Join(way()...)
	})
	if report.Fit {
		testutil.Must(t, err)
		if w.hosts.byName["box-1"] == nil {
			t.Error("there is no Host")
		}
	}
	if said := w.said.String(); !strings.Contains(said, "Add it now, with the key "+server.KeyFile) || !strings.Contains(said, "The line is in ~/.ssh/authorized_keys of root.") {
		t.Errorf("it was not told, or not asked:\n%s", said)
	}
	file := filepath.Join(server.Dir, ".ssh/authorized_keys")
	lines := func() string {
		data := testutil.ReadFile(t, file)
		return string(data)
	}
	if n := strings.Count(lines(), "restrict,port-forwarding ssh-ed25519 "); n != 1 || !strings.HasSuffix(lines(), " bowline:box-1\n") {
		t.Errorf("authorized_keys is\n%s", lines())
	}
	for path, mode := range map[string]os.FileMode{filepath.Dir(file): 0o700, file: 0o600} {
		info, err := os.Stat(path)
		testutil.Must(t, err)
		if info.Mode().Perm() != mode {
			t.Errorf("%s has the mode %s", path, info.Mode())
		}
	}

	// A second time the line is not added again.
	m := &SSH{Endpoint: "ssh://root@" + server.Address + rt.Socket, Access: endpoint.Credentials{KeyFile: server.KeyFile}}
	before := lines()
	added := true
	patient(t, func() (err error) {
		added, err = m.Install(t.Context(), strings.TrimSpace(before), []string{server.HostKey})
		return err
	})
	if added || lines() != before {
		t.Errorf("added %v:\n%s", added, lines())
	}
	if _, err := m.Install(t.Context(), "x", []string{strings.TrimSpace(string(mine))}); err == nil {
		t.Error("a machine with another host key was given a line")
	}
	key := w.theSecret().Data[v1.SSHAuthPrivateKey]
	patient(t, func() error { return m.Try(t.Context(), key, []string{server.HostKey}) })
	other, err := newKey("other")
	testutil.Must(t, err)
	patient(t, func() error {
		var refused *endpoint.AuthError
		if err := m.Try(t.Context(), other, []string{server.HostKey}); !errors.As(err, &refused) {
			return fmt.Errorf("another key: %w", err)
		}
		return nil
	})
}

// TestAddThroughJumps uses three sshds: two jumps and the machine. The Host pins the keys of each.
// The login's key is added to each, restricted on a jump to the next hop.
func TestAddThroughJumps(t *testing.T) {
	outer, inner, server, rt := sshtest.Run(t), sshtest.Run(t), sshtest.Run(t), fake.Run(t, fake.Config{})
	mine := filepath.Join(t.TempDir(), "mine")
	testutil.Must(t, exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", mine).Run())
	public := testutil.ReadFile(t, mine+".pub")
	all := []*sshtest.Server{outer, inner, server}
	for _, s := range all {
		testutil.Must(t, os.MkdirAll(filepath.Join(s.Dir, ".ssh"), 0o700))
		testutil.Must(t, os.WriteFile(filepath.Join(s.Dir, ".ssh/authorized_keys"), public, 0o600))
	}
	w := newWorld(t)
	w.Poll = time.Millisecond
	var report *hostcheck.Report
	w.Reporter = &catching{Reporter: w, report: &report}
	w.Machine = func(raw string, jumps []endpoint.Jump) Machine {
		return &SSH{Endpoint: raw, Access: endpoint.Credentials{KeyFile: mine}, Jumps: jumps}
	}
	r := request()
	r.Login, r.Socket = "root@"+server.Address, rt.Socket
	r.ProxyJump = []string{"root@" + outer.Address, "root@" + inner.Address}
	r.JumpHostKeys = []string{outer.HostKey}
	w.answers = nil
	if err := w.Add(w.ctx(), r); err == nil || !strings.Contains(err.Error(), "jump 127.0.0.1: ") || !strings.Contains(err.Error(), "--jump-host-key") {
		t.Errorf("a jump with another key: %v", err)
	}
	r.JumpHostKeys, r.HostKeys = []string{outer.HostKey, inner.HostKey}, []string{server.HostKey}
	patient(t, func() error {
		w.answers = []bool{true, true, true}
		if err := w.Add(w.ctx(), r); report == nil {
			return err
		}
		return nil
	})
	for i, s := range all {
		data := testutil.ReadFile(t, filepath.Join(s.Dir, ".ssh/authorized_keys"))
		options := "restrict,port-forwarding ssh-ed25519 "
		if i < 2 {
			options = fmt.Sprintf(`restrict,port-forwarding,permitopen="%s",command="false" ssh-ed25519 `, all[i+1].Address)
		}
		if strings.Count(string(data), options) != 1 {
			t.Errorf("authorized_keys of machine %d are\n%s", i, data)
		}
	}
	for _, l := range report.Lines {
		switch l.Subject {
		case hostcheck.Reachability, hostcheck.HostKey, hostcheck.Login, hostcheck.Forwarding, hostcheck.Runtime:
			if l.Level != hostcheck.OK {
				t.Errorf("by the key with its restrictions: %+v", l)
			}
		}
	}
	u, err := r.check()
	testutil.Must(t, err)
	pinned, err := w.jumps(w.ctx(), &r)
	testutil.Must(t, err)
	if len(pinned) != 2 {
		t.Fatalf("%d jumps", len(pinned))
	}
	spec := r.host(u.String(), []string{server.HostKey}).Spec
	if spec.SSH == nil || len(spec.SSH.ProxyJump) != 2 || !known(spec.SSH.ProxyJump[1].HostKeys, mustKey(t, inner.HostKey)) || spec.SSH.ProxyJump[0].Port == 22 {
		t.Errorf("the Host's way is %+v", spec.SSH)
	}
}

func mustKey(t *testing.T, line string) ssh.PublicKey {
	t.Helper()
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
	testutil.Must(t, err)
	return key
}

// TestListeningKey: the key of a machine that listens for its node may listen on that port, and on
// no other.
func TestListeningKey(t *testing.T) {
	server := sshtest.Run(t, "GatewayPorts clientspecified")
	private, err := newKey("box-1")
	testutil.Must(t, err)
	public, err := publicKey(private)
	testutil.Must(t, err)
	free := func() *net.TCPAddr {
		l, err := net.Listen("tcp", "127.0.0.2:0")
		testutil.Must(t, err)
		defer l.Close()
		return l.Addr().(*net.TCPAddr)
	}
	m := &SSH{Endpoint: "ssh://root@" + server.Address + "/run/no.sock"}
	testutil.Must(t, os.MkdirAll(filepath.Join(server.Dir, ".ssh"), 0o700))
	// Another program may take a port between our probe and sshd's listen.
	for try := 1; ; try++ {
		allowed, other := free(), free()
		line := authorizedKey(public, "box-1", "", listenOptions(allowed.Port))
		if !strings.HasPrefix(line, fmt.Sprintf(`restrict,port-forwarding,permitlisten="%d" ssh-ed25519 `, allowed.Port)) {
			t.Fatalf("the line is %s", line)
		}
		testutil.Must(t, os.WriteFile(filepath.Join(server.Dir, ".ssh/authorized_keys"), []byte(line+"\n"), 0o600))
		listens := false
		patient(t, func() error {
			client, err := m.login(t.Context(), endpoint.Options{Credentials: endpoint.Credentials{Key: private}, HostKeys: []string{server.HostKey}}, nil)
			if err != nil {
				return err
			}
			defer client.Close()
			if l, err := client.ListenTCP(other); err == nil {
				l.Close()
				t.Error("the key listens on a port that it is not for")
			}
			l, err := client.ListenTCP(allowed)
			if listens = err == nil; listens {
				l.Close()
			}
			return nil
		})
		if listens {
			return
		}
		if try == 5 {
			t.Fatal("the key does not listen on the port that it is for")
		}
	}
}

// patient retries what may fail on a busy machine.
func patient(t *testing.T, try func() error) {
	t.Helper()
	for left := 5; ; left-- {
		err := try()
		if err == nil {
			return
		}
		slow := false
		for _, words := range []string{"no answer", "no end within", "timeout", "deadline", "does not answer any more"} {
			slow = slow || strings.Contains(err.Error(), words)
		}
		if !slow || left == 1 {
			t.Fatal(err)
		}
		t.Logf("again: %v", err)
	}
}

// catching stores the report.
type catching struct {
	Reporter
	report **hostcheck.Report
}

func (c *catching) Report(r *hostcheck.Report) {
	*c.report = r
	c.Reporter.Report(r)
}

// TestInstallScript: the existing content of the file is kept, whatever it is.
func TestInstallScript(t *testing.T) {
	line := `restrict,port-forwarding,from="10.0.0.*" ssh-ed25519 AAAAnew bowline:box-1`
	for name, c := range map[string]struct{ before, after, said string }{
		"nothing":        {"", line + "\n", "added"},
		"others":         {"ssh-rsa AAAAold a\n", "ssh-rsa AAAAold a\n" + line + "\n", "added"},
		"no newline":     {"ssh-rsa AAAAold a", "ssh-rsa AAAAold a\n" + line + "\n", "added"},
		"there":          {"x\n" + line + "\ny\n", "x\n" + line + "\ny\n", "there"},
		"other options":  {"ssh-ed25519 AAAAnew mine\n", "ssh-ed25519 AAAAnew mine\n", "there"},
		"commented out":  {"# ssh-ed25519 AAAAnew mine\n", "# ssh-ed25519 AAAAnew mine\n" + line + "\n", "added"},
		"a key like it":  {"ssh-ed25519 AAAA a\n", "ssh-ed25519 AAAA a\n" + line + "\n", "added"},
		"another's mode": {"a\n", "a\n" + line + "\n", "added"},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			file := filepath.Join(home, ".ssh/authorized_keys")
			if c.before != "" {
				testutil.Must(t, os.Mkdir(filepath.Dir(file), 0o775))
				testutil.Must(t, os.WriteFile(file, []byte(c.before), 0o664))
				testutil.Must(t, os.Chmod(file, 0o664))
				testutil.Must(t, os.Chmod(filepath.Dir(file), 0o775))
			}
			cmd := exec.Command("sh", "-c", installScript)
			cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
			cmd.Dir = "/" // where from='s pattern would match files
			cmd.Stdin = strings.NewReader(line + "\n")
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != "bowline: "+c.said+"\n" {
				t.Fatalf("%v: %s", err, out)
			}
			got := testutil.ReadFile(t, file)
			if string(got) != c.after {
				t.Errorf("the file is\n%s", got)
			}
			info, err := os.Stat(file)
			testutil.Must(t, err)
			if info.Mode().Perm()&0o022 != 0 {
				t.Errorf("its mode is %s, which sshd does not take", info.Mode())
			}
		})
	}
}
