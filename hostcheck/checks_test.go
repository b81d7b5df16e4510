package hostcheck

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	sshhost "github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/syncloop/owner"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// expect checks the level, and that the line or its fix has the words.
func expect(t *testing.T, name string, got Line, level Level, words ...string) {
	t.Helper()
	if got.Level != level {
		t.Errorf("%s: got %+v, want %s", name, got, level)
	}
	if (got.Fix == "") != (got.Level == OK) {
		t.Errorf("%s: %s with the fix %q", name, got.Level, got.Fix)
	}
	for _, w := range words {
		if !strings.Contains(got.Found+"\n"+got.Fix, w) {
			t.Errorf("%s: no %q in %+v", name, w, got)
		}
	}
}

func TestCheckRights(t *testing.T) {
	sock := func(owner, group string, mode fs.FileMode) *socketFile {
		return &socketFile{"/run/c.sock", owner, group, mode}
	}
	for _, c := range []struct {
		name  string
		r     rights
		level Level
		words []string
	}{
		{"root", rights{user: "root", socket: sock("root", "root", 0o660)}, OK, nil},
		{"root by another name", rights{user: "toor"}, OK, nil},
		{"local", rights{local: true, user: "alice", uid: 1000}, Failure, []string{"sudo bowline"}},
		{"sudo and member", rights{user: "alice", uid: 1000, groups: []string{"alice", "ctr"}, sudo: true, socket: sock("root", "ctr", 0o660)}, OK, []string{"sudo without a password"}},
		{"sudo and no member", rights{user: "alice", uid: 1000, groups: []string{"alice"}, sudo: true, socket: sock("root", "ctr", 0o660)}, Failure, []string{"usermod -aG ctr alice"}},
		{"sudo, member, mode", rights{user: "alice", uid: 1000, groups: []string{"ctr"}, sudo: true, socket: sock("root", "ctr", 0o600)}, Failure, []string{"chmod g+rw /run/c.sock"}},
		{"sudo and a relay", rights{user: "alice", uid: 1000, groups: []string{"alice"}, sudo: true, socket: sock("root", "root", 0o660), relay: "perl"}, OK, []string{"through perl"}},
		{"owner", rights{user: "alice", uid: 1000, sudo: true, socket: sock("alice", "root", 0o600)}, OK, nil},
		{"everybody", rights{user: "alice", uid: 1000, sudo: true, socket: sock("root", "root", 0o666)}, OK, nil},
		{"member and no sudo", rights{user: "alice", uid: 1000, groups: []string{"ctr"}, socket: sock("root", "ctr", 0o660)}, Failure, []string{"echo 'alice ALL=(root) NOPASSWD: ALL' >/etc/sudoers.d/bowline"}},
		{"neither", rights{user: "alice", uid: 1000, socket: sock("root", "ctr", 0o660)}, Failure, []string{"sudoers.d", "usermod -aG ctr alice", "mode 0660"}},
		{"unseen socket", rights{user: "alice", uid: 1000, sudo: true}, OK, nil},
	} {
		expect(t, c.name, checkRights(c.r), c.level, c.words...)
	}
}

func TestCheckSocket(t *testing.T) {
	failed := errors.New("open failed")
	prohibited := fmt.Errorf("dial: %w", &ssh.OpenChannelError{Reason: ssh.Prohibited})
	for _, c := range []struct {
		name  string
		s     socketState
		level Level
		words []string
	}{
		{"opens", socketState{}, OK, []string{"sshd"}},
		{"opens here", socketState{local: true}, OK, nil},
		{"missing", socketState{path: socket, err: failed, missing: true}, Failure, []string{"no socket", "systemctl enable --now containerd"}},
		{"missing, CRI-O's", socketState{path: crioSocket, err: failed, missing: true}, Failure, []string{"start CRI-O", "systemctl enable --now crio"}},
		{"missing, of another", socketState{path: "/run/k3s/containerd/containerd.sock", err: failed, missing: true}, Failure, []string{"start the container runtime"}},
		{"prohibited", socketState{err: prohibited, mayOpen: true}, Failure, []string{"AllowStreamLocalForwarding yes", "AllowTcpForwarding yes"}},
		{"silent prohibition", socketState{err: failed, mayOpen: true, listened: true}, Failure, []string{"AllowStreamLocalForwarding yes"}},
		{"rights", socketState{err: failed, listened: true}, Failure, []string{"rights above"}},
		{"no listener", socketState{path: socket, err: failed, mayOpen: true}, Failure, []string{"no process listens", "systemctl restart containerd"}},
		{"no listener, CRI-O's", socketState{path: crioSocket, err: failed, mayOpen: true}, Failure, []string{"no process listens", "systemctl restart crio"}},
		{"local", socketState{local: true, path: socket, err: failed, mayOpen: true, listened: true}, Failure, []string{"open failed", "journalctl -u containerd"}},
		{"local, CRI-O's", socketState{local: true, path: crioSocket, err: failed, mayOpen: true, listened: true}, Failure, []string{"open failed", "journalctl -u crio"}},
	} {
		line := checkSocket(c.s)
		expect(t, c.name, line, c.level, c.words...)
		if c.s.path != socket && strings.Contains(line.Fix, "containerd") {
			t.Errorf("%s: the fix is of containerd: %s", c.name, line.Fix)
		}
	}
	if table := "Num RefCount Protocol Flags Type St Inode Path\n" +
		"0: 00000002 00000000 00010000 0001 01 1 /run/a b.sock\n0: 00000003 00000000 00000000 0001 03 2 /run/c.sock\n"; !listenedOn(table, "/run/a b.sock") || listenedOn(table, "/run/c.sock") || listenedOn(table, "") {
		t.Error("listenedOn")
	}
}

func TestCheckExposure(t *testing.T) {
	at := "10.0.0.7:10250"
	for _, c := range []struct {
		name  string
		x     exposure
		level Level
		words []string
	}{
		{"listens", exposure{address: at}, OK, []string{at}},
		{"managed", exposure{address: at, managed: true}, OK, []string{at, "running node"}},
		{"loopback", exposure{address: at, err: fmt.Errorf("ask: %w", sshhost.NotListened(at, syscall.ECONNREFUSED))}, Failure, []string{at, "loopback", "GatewayPorts clientspecified", "systemctl reload ssh"}},
		{"taken", exposure{address: at, err: &sshhost.NotExposedError{Reason: sshhost.PortTaken, Text: "taken", Fix: "see"}}, Failure, []string{"taken", "see"}},
		{"other", exposure{address: at, err: errors.New("what?")}, Failure, []string{at, "what?", "journalctl -u ssh"}},
	} {
		expect(t, c.name, checkExposure(c.x), c.level, c.words...)
	}
}

// listens is a machine that listens on loopback instead of its own address.
type listens struct {
	*fakeMachine
	refused, mute bool
	at            string // the requested address
	on            net.Addr
}

func (m *listens) Expose(_ context.Context, address string) (net.Listener, error) {
	m.at = address
	if m.refused {
		return nil, &sshhost.NotExposedError{Reason: sshhost.Forbidden, Text: "no", Fix: "AllowTcpForwarding yes"}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		m.on = l.Addr()
	}
	return l, err
}

func (m *listens) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if m.mute || m.on == nil {
		return nil, syscall.ECONNREFUSED
	}
	return new(net.Dialer).DialContext(ctx, "tcp", m.on.String())
}

// listeningWay leads to a listens.
type listeningWay struct {
	*fakeWay
	listens *listens
}

func (w *listeningWay) open(context.Context, bool) (Machine, error) { return w.listens, nil }

// TestExposure: it is checked only if Expose is set, and has a line of its own.
func TestExposure(t *testing.T) {
	for name, c := range map[string]struct {
		port          int
		refused, mute bool
		level         Level
		word          string
	}{
		"not asked after": {},
		"listens":         {10250, false, false, OK, "10.0.0.7:10250"},
		"refused":         {10250, true, false, Failure, "AllowTcpForwarding yes"},
		"on loopback":     {10250, false, true, Failure, "GatewayPorts clientspecified"},
	} {
		t.Run(name, func(t *testing.T) {
			well := allWell(t)
			well.machine.facts.Addresses = []net.IP{net.IPv4(10, 0, 0, 7)}
			w := &listeningWay{well, &listens{fakeMachine: well.machine, refused: c.refused, mute: c.mute}}
			r, _ := look(t.Context(), Config{Socket: socket, RootDir: "/var/lib/kubelet", Expose: c.port}, w, false)
			if c.port == 0 {
				for _, l := range r.Lines {
					if l.Subject == Exposure {
						t.Errorf("it is reported: %+v", l)
					}
				}
				return
			}
			expect(t, name, line(t, r, Exposure), c.level, c.word)
			if w.listens.at != "10.0.0.7:10250" || len(r.NotLookedAt) > 0 {
				t.Errorf("asked for %q:\n%s", w.listens.at, r.Text(false))
			}
		})
	}
}

func TestCheckRuntime(t *testing.T) {
	status := func(ready bool) *runtimeapi.RuntimeStatus {
		return &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: runtimeapi.RuntimeReady, Status: ready, Message: "no disk"}}}
	}
	for _, c := range []struct {
		name, version string
		ready         bool
		level         Level
	}{
		{"containerd", "v1.6.20~ds1", true, OK},
		{"containerd", "2.1.4", true, OK},
		{"containerd", "1.7.24+unknown", true, OK},
		{"containerd", "1.5.9", true, Failure},
		{"containerd", "main-abc", true, OK},
		{"cri-o", "1.5.0", true, OK},
		{"containerd", "2.0.0", false, Failure},
	} {
		v := &runtimeapi.VersionResponse{RuntimeName: c.name, RuntimeVersion: c.version}
		expect(t, c.version, checkRuntime(serviceOf(socket), v, status(c.ready)), c.level, c.version)
	}

	none := fmt.Errorf("the runtime does not serve CRI v1: %w", cri.ErrNoCRI)
	docker := "# see\n#disabled_plugins = []\ndisabled_plugins = [\"cri\"]\n"
	expect(t, "docker", checkNoRuntime(socket, none, []byte(docker)), Failure, "Docker", "disabled_plugins = []", "systemctl restart containerd")
	expect(t, "no file", checkNoRuntime(socket, none, nil), Failure, "containerd config dump | grep")
	expect(t, "silent", checkNoRuntime(socket, errors.New("no answer"), []byte(docker)), Failure, "no answer", "journalctl -u containerd")
	expect(t, "CRI-O, silent", checkNoRuntime(crioSocket, errors.New("no answer"), nil), Failure, "no answer", "journalctl -u crio")
	expect(t, "another without CRI", checkNoRuntime("/run/docker.sock", none, nil), Failure, "set the endpoint to the socket of a CRI runtime")
	for config, want := range map[string]string{
		"disabled_plugins = [\n  'io.containerd.grpc.v1.cri',\n  \"aufs\"\n]": `disabled_plugins = ["aufs"]`,
		`disabled_plugins = ["aufs"]`:                                         "",
		`# disabled_plugins = ["cri"]`:                                        "",
		`not_disabled_plugins = ["cri"]`:                                      "",
	} {
		if line, disabled := withoutCRI([]byte(config)); disabled != (want != "") || disabled && line != want {
			t.Errorf("%q: %q, %v", config, line, disabled)
		}
	}
}

func TestCheckNetwork(t *testing.T) {
	status := func(ready bool) *runtimeapi.RuntimeStatus {
		return &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: runtimeapi.NetworkReady, Status: ready, Reason: "NotReady"}}}
	}
	dirs := cni{confDir: "/c", binDirs: []string{"/b"}}
	expect(t, "ready", checkNetwork(serviceOf(socket), status(true), dirs), OK)
	expect(t, "silent", checkNetwork(serviceOf(socket), nil, dirs), Warning)
	expect(t, "empty", checkNetwork(serviceOf(socket), status(false), dirs), Failure, "NotReady", "/c has no *.conflist")
	dirs.configs, dirs.plugins = []string{"1.conflist"}, []string{"bridge", "portmap"}
	expect(t, "none of two", checkNetwork(serviceOf(socket), status(false), dirs), Failure, "1.conflist", "/b", "bridge, portmap")
	expect(t, "reported as ready, by a guess", checkNetwork(serviceOf(socket), status(true), dirs), OK)
	dirs.loaded = true
	expect(t, "reported as ready", checkNetwork(serviceOf(socket), status(true), dirs), Failure, "will fail", "/b", "bridge, portmap")
	dirs.bins = []string{"bridge", "portmap"}
	expect(t, "ready and all there", checkNetwork(serviceOf(socket), status(true), dirs), OK)
	expect(t, "all there", checkNetwork(serviceOf(socket), status(false), dirs), Failure, "/c/1.conflist")

	got, err := parsePlugins([]byte(`{"name": "n", "plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}, {"type": "portmap"}, {"type": "bridge"}]}`))
	if err != nil || !slices.Equal(got, []string{"bridge", "host-local", "portmap"}) {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err = parsePlugins([]byte(`{"type": "macvlan", "ipam": {}}`)); err != nil || !slices.Equal(got, []string{"macvlan"}) {
		t.Errorf("got %v, %v", got, err)
	}
	for config, want := range map[string]string{
		``:                        "/etc/cni/net.d [/opt/cni/bin] false",
		`{"cni": {"confDir": 7}}`: "/etc/cni/net.d [/opt/cni/bin] false",
		`{"cni": {"binDir": "/x", "confDir": "/y"}}`:           "/y [/x] true",
		`{"cni": {"binDirs": ["/z", "/w"], "confDir": "../"}}`: "/etc/cni/net.d [/z /w] true",
	} {
		if c := parseCNI(config); fmt.Sprint(c.confDir, " ", c.binDirs, " ", c.loaded) != want {
			t.Errorf("%s: %+v", config, c)
		}
	}
}

func TestCheckKernel(t *testing.T) {
	all := []string{"cpu", "memory", "pids"}
	expect(t, "v2", checkCgroups(2, all, "systemd", true), OK, "version 2", "systemd")
	expect(t, "too old to report", checkCgroups(2, all, "systemd", false), Warning, "cgroupDriver: systemd")
	expect(t, "v1", checkCgroups(1, all, "cgroupfs", false), OK)
	expect(t, "no runtime", checkCgroups(2, all, "", false), OK, "controllers")
	expect(t, "none", checkCgroups(0, nil, "cgroupfs", true), Failure)
	expect(t, "no memory", checkCgroups(2, []string{"cpu", "pids"}, "cgroupfs", true), Failure, "cgroup_enable=memory")
	expect(t, "nothing", checkCgroups(1, nil, "cgroupfs", true), Failure, "cpu, memory, pids")
	v1 := "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t3\t1\nmemory\t0\t1\t0\npids\t0\t1\t1\n"
	if got := parseControllers(1, v1); !slices.Equal(got, []string{"cpu"}) {
		t.Errorf("got %v", got)
	}

	expect(t, "in time", checkClock(0, time.Millisecond), OK, "the same")
	expect(t, "ahead", checkClock(1900*time.Millisecond, time.Millisecond), OK, "1.9s ahead")
	expect(t, "perhaps", checkClock(3*time.Second, 2*time.Second), OK)
	expect(t, "behind", checkClock(-3*time.Second, time.Millisecond), Warning, "3s behind", "timedatectl")

	expect(t, "no swap", checkSwap(0, false), OK)
	expect(t, "swap", checkSwap(1<<30, false), Failure, "1.0 GiB", "swapoff -a", "--fail-swap-on=false")
	expect(t, "swap that the node allows", checkSwap(1<<30, true), OK, "1.0 GiB", "no swap")

	yes, no := true, false
	expect(t, "no SELinux", checkSELinux(false, false, &no), OK, "off")
	expect(t, "permissive", checkSELinux(true, false, &no), OK, "permissive")
	expect(t, "enforcing", checkSELinux(true, true, &yes), OK, "enforcing")
	expect(t, "the runtime does not report", checkSELinux(true, true, nil), OK, "enforcing")
	expect(t, "disabled in the runtime", checkSELinux(true, true, parseSELinux(`{"enableSelinux": false}`)), Warning, "enable_selinux = true")
	if got := parseSELinux(`{}`); got != nil {
		t.Errorf("a configuration that does not say: %v", *got)
	}

	const mountinfo = `21 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
22 21 254:2 / /var/lib\040x rw master:3 - ext4 /dev/vdb rw
23 21 254:3 / /var/lib rw master:3 shared:7 - ext4 /dev/vdc rw
24 23 254:4 / /var/lib/kubelet rw - ext4 /dev/vdd shared:9
25 24 254:4 / /var/lib/kubelet-other rw shared:8 - ext4 /dev/vdd rw
`
	for dir, want := range map[string]propagation{
		"/etc":               {"/", true},
		"/var/lib x/a":       {"/var/lib x", false},
		"/var/lib/other":     {"/var/lib", true},
		"/var/lib/kubelet":   {"/var/lib/kubelet", false},
		"/var/lib/kubelet/a": {"/var/lib/kubelet", false},
	} {
		if got, err := parsePropagation(mountinfo, dir); err != nil || got != want {
			t.Errorf("%s: %+v %v, want %+v", dir, got, err, want)
		}
	}
	if got, err := parsePropagation("21 1\n", "/etc"); err == nil {
		t.Errorf("no mount: %+v", got)
	}
	expect(t, "shared", checkPropagation("/r", propagation{"/", true}), OK, "shared mount (/)")
	expect(t, "private", checkPropagation("/r", propagation{"/", false}), OK, "private mount (/)", "host release")

	values := map[string]string{}
	for _, s := range sysctls {
		values[s.name] = s.want
	}
	if got := checkSysctls(values); len(got) != 1 || got[0].Level != OK {
		t.Errorf("got %+v", got)
	}
	values["net.ipv4.ip_forward"], values["kernel.panic"] = "0", "0"
	delete(values, "net.bridge.bridge-nf-call-iptables")
	got := checkSysctls(values)
	if len(got) != 3 || strings.Contains(fmt.Sprint(got), "bridge-nf") {
		t.Fatalf("got %+v", got)
	}
	expect(t, "forward", got[0], Failure, "echo net.ipv4.ip_forward=1 >>/etc/sysctl.d/90-bowline.conf", "sysctl --system")
	expect(t, "panic", got[1], Warning, "kernel.panic=0", "kernel.panic=10")
	expect(t, "rest", got[2], OK, "vm.overcommit_memory=1")
}

func TestCheckDisk(t *testing.T) {
	for _, c := range []struct {
		avail, inodes int64
		level         Level
	}{
		{15, 15, OK}, {14, 50, Warning}, {5, 50, Warning}, {4, 50, Failure}, {50, 14, Warning}, {50, 0, Failure},
	} {
		got := checkDisk("below /x", usage{size: 100, avail: c.avail, mount: "/x"}, &usage{size: 100, avail: c.inodes}, "free disk space")
		expect(t, fmt.Sprint(c), got, c.level, "/x")
	}
	for _, c := range []struct {
		avail, inodes int64
		want          string
	}{
		{15, 5, ""}, {14, 50, "if it holds images, the default evictionHard (imagefs.available 15%) would evict pods at once"},
		{10, 50, "(imagefs.available 15%)"}, {9, 50, "; the default evictionHard (nodefs.available 10%) would evict pods at once"},
		{14, 4, "; the default evictionHard (nodefs.inodesFree 5%) would evict pods at once"},
	} {
		got := checkDisk("below /x", usage{size: 100, avail: c.avail, mount: "/x"}, &usage{size: 100, avail: c.inodes}, "free disk space").Found
		if !strings.Contains(got, c.want) || (c.want == "") == strings.Contains(got, "evict") {
			t.Errorf("with %d and %d free it says %q, want %q", c.avail, c.inodes, got, c.want)
		}
	}
	expect(t, "no inodes", checkDisk("x", usage{size: 100, avail: 50}, &usage{}, "m"), OK)
	expect(t, "not known", checkDisk("x", usage{size: 100, avail: 50}, nil, "m"), OK)
	for out, want := range map[string]usage{
		"Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 264212084 38292596 57208668 41% /\n": {"/dev/vda", 264212084, 57208668, "/"},
		"h\n//nas/my share 10 4 6 40% /mnt/a b\n":    {"//nas/my share", 10, 6, "/mnt/a b"},
		"h\n/dev/btrfs - - - - /\n":                  {"/dev/btrfs", 0, 0, "/"},
		"h\n":                                        {},
		"h\noverlay 10 4\n":                          {},
		"df: /x: No such file or directory\n":        {},
		"h\n/dev/a 1 1 1 1% /\n/dev/b 1 1 1 1% /b\n": {},
	} {
		got, err := parseDF(out)
		if got != want || (err != nil) != (want == usage{}) {
			t.Errorf("%q: %+v, %v", out, got, err)
		}
	}
}

func TestCheckDrivers(t *testing.T) {
	locks := owner.LockPaths("/var/lib/kubelet", owner.RunDir, "/run/containerd/containerd.sock")
	if locks[0] != "/var/lib/kubelet/bowline/owner.lock" || locks[1] != "/run/bowline/run-containerd-containerd.sock.lock" {
		t.Fatalf("locks are %q", locks)
	}
	kubelets := []owner.Sandbox{{ID: "1", Pod: "ns/p", Kubelet: true, Ready: true}}
	ours := []owner.Sandbox{{ID: "1", Pod: "ns/p", Stamp: "c-1/n-1", Kubelet: true, Ready: true}}
	for _, c := range []struct {
		name  string
		d     drivers
		level Level
		words []string
	}{
		{"nobody", drivers{}, OK, nil},
		{"not as root", drivers{blind: true}, Warning, []string{"only root"}},
		{"not as root, and seen", drivers{blind: true, kubelet: 7}, Failure, []string{"pid 7"}},
		{"records", drivers{sandboxes: []owner.Sandbox{{ID: "1"}}}, OK, []string{"1 sandbox record"}},
		{"kubelet's pods", drivers{sandboxes: kubelets}, Failure, []string{"ns/p", "drain"}},
		{"kubelet", drivers{kubelet: 7}, Failure, []string{"pid 7", "systemctl disable --now kubelet"}},
		{"held", drivers{held: map[string]int{locks[1]: 7}, holders: map[string][]byte{locks[1]: []byte(record)}}, Failure, []string{"c-1", "n-1", "pid 77", locks[1], "stop it"}},
		{"held by who knows", drivers{held: map[string]int{locks[0]: 7}}, Failure, []string{"fuser"}},
		{"left", drivers{file: []byte(record), sandboxes: ours}, Warning, []string{"c-1", "n-1", "1 pod"}},
		{"left without the file", drivers{sandboxes: ours}, Warning, []string{"c-1", "n-1"}},
		{"unclear", drivers{file: []byte("x"), filePath: "/f"}, Failure, []string{"/f"}},
		{"empty file", drivers{file: []byte("\n")}, OK, nil},
	} {
		got := checkDrivers(c.d, locks, owner.Identity{}, owner.Witnesses{})
		if len(got) != 1 {
			t.Errorf("%s: got %+v", c.name, got)
			continue
		}
		expect(t, c.name, got[0], c.level, c.words...)
	}
	if got := checkDrivers(drivers{kubelet: 7, sandboxes: kubelets}, locks, owner.Identity{}, owner.Witnesses{}); len(got) != 2 {
		t.Errorf("got %+v", got)
	}
	held1 := drivers{held: map[string]int{locks[0]: 7}, holders: map[string][]byte{locks[0]: []byte(record)}, sandboxes: ours}
	for node, level := range map[string]Level{"n-1": OK, "n-2": Failure} {
		got := checkDrivers(held1, locks, owner.Identity{ClusterUID: "c-1", NodeName: node}, owner.Witnesses{})
		expect(t, "managed as "+node, got[0], level, "n-1")
	}
	held1.kubelet = 7
	if got := checkDrivers(held1, locks, owner.Identity{ClusterUID: "c-1", NodeName: "n-1"}, owner.Witnesses{}); got[0].Level != Failure {
		t.Errorf("beside a kubelet: %+v", got)
	}
	k, held := parseDrivers("kubelet 12\nkubelet 13\nheld 5 /a b\nheld 6 /a b\nheld x /c\nheld 9\n?\n")
	if k != 12 || len(held) != 1 || held["/a b"] != 5 {
		t.Errorf("got %d, %v", k, held)
	}
}

func TestCheckHop(t *testing.T) {
	failed := func(h hop) Line {
		lines := checkHop("10.0.0.7:22", target, h)
		for _, l := range lines[:len(lines)-1] {
			expect(t, "before the failure", l, OK)
		}
		return lines[len(lines)-1]
	}
	unknownKey := &endpoint.HostKeyError{Problem: "unknown", Type: "ssh-ed25519", Fingerprint: "SHA256:x", Scan: "bowline host scan 10.0.0.7"}
	changed := &endpoint.HostKeyError{Problem: "changed", Type: "ssh-ed25519", Fingerprint: "SHA256:x", Known: []string{"SHA256:y"}, Scan: "bowline host scan 10.0.0.7"}
	for _, c := range []struct {
		name    string
		h       hop
		level   Level
		subject string
		words   []string
	}{
		{"all well", hop{dialed: true, key: hostKey(t)}, OK, Login, nil},
		{"refused", hop{err: syscall.ECONNREFUSED}, Failure, Reachability, []string{"systemctl enable --now ssh"}},
		{"silent", hop{err: context.DeadlineExceeded}, Failure, Reachability, []string{"firewall"}},
		{"jump forbids", hop{err: &ssh.OpenChannelError{Reason: ssh.Prohibited}}, Failure, Reachability, []string{"AllowTcpForwarding yes"}},
		{"not from the jump", hop{err: &ssh.OpenChannelError{Reason: ssh.ConnectionFailed, Message: "Connection refused"}}, Failure, Reachability, []string{"its jump says: Connection refused"}},
		{"no SSH", hop{dialed: true, err: errors.New("EOF")}, Failure, Reachability, []string{"EOF"}},
		{"unknown key", hop{dialed: true, err: unknownKey}, Failure, HostKey, []string{"bowline host scan 10.0.0.7", "--host-key"}},
		{"changed key", hop{dialed: true, err: changed}, Failure, HostKey, []string{"has changed", "SHA256:y", "bowline host scan 10.0.0.7"}},
		{"no key", hop{dialed: true, err: &endpoint.AuthError{}}, Failure, Login, []string{"ssh-copy-id -i /keys/id.pub -p 22 root@10.0.0.7"}},
		{"cut off", hop{dialed: true, key: hostKey(t), err: errors.New("EOF")}, Failure, Login, nil},
	} {
		got := failed(c.h)
		expect(t, c.name, got, c.level, c.words...)
		if got.Subject != c.subject {
			t.Errorf("%s: the subject is %s", c.name, got.Subject)
		}
	}
}

func TestCheckHostKeyOfJump(t *testing.T) {
	e := &endpoint.HostKeyError{Problem: "unknown", Type: "ssh-ed25519", Fingerprint: "SHA256:x", Scan: "bowline host scan 10.0.0.1"}
	got := checkHostKey(jumpName+"10.0.0.1:22", e)
	expect(t, "jump", got, Failure, "--known-hosts", "bowline host scan 10.0.0.1")
	if strings.Contains(got.Fix, "--host-key") {
		t.Errorf("a flag that jumps do not hear: %q", got.Fix)
	}
}

func TestParseID(t *testing.T) {
	r, err := parseID("alice\n1000\nalice wheel\nsudo\nroot docker 660\n", "/s")
	if err != nil || r.user != "alice" || r.uid != 1000 || !r.sudo || !slices.Contains(r.groups, "wheel") || r.socket == nil || *r.socket != (socketFile{"/s", "root", "docker", 0o660}) {
		t.Errorf("got %+v, %v", r, err)
	}
	if r, err = parseID("0\n0\n0\n\n", "/s"); err != nil || r.uid != 0 || r.sudo || r.socket != nil {
		t.Errorf("got %+v, %v", r, err)
	}
	for _, bad := range []string{"", "a\nb\nc\nd\n", "a\n-1\nc\n\n", "a\n1\n\n\nroot root 999\n"} {
		if r, err := parseID(bad, "/s"); err == nil {
			t.Errorf("%q: %+v", bad, r)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 264212084 38292596 57208668 41% /\n")
	f.Add("alice\n1000\nalice wheel\nsudo\nroot docker 660\n")
	f.Add("kubelet 12\nheld 5 /a b\n")
	f.Add(`disabled_plugins = ["cri", 'aufs']`)
	f.Add(`{"plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}]}`)
	f.Add(record)
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		if u, err := parseDF(s); err == nil && (u.mount == "" || u.device == "") {
			t.Errorf("df: %+v", u)
		}
		if r, err := parseID(s, "/s"); err == nil {
			if r.uid < 0 || r.user == "" {
				t.Errorf("id: %+v", r)
			}
			checkRights(r)
		}
		if pid, held := parseDrivers(s); pid < 0 || held[""] != 0 {
			t.Errorf("drivers: %d, %v", pid, held)
		}
		if line, disabled := withoutCRI([]byte(s)); disabled {
			if _, still := withoutCRI([]byte(line)); still {
				t.Errorf("%q still disables the CRI", line)
			}
		}
		if r, err := owner.ParseRecord([]byte(s)); err == nil && r != nil && (r.NodeName == "" || r.ClusterUID == "") {
			t.Errorf("record: %+v", r)
		}
		_, _ = parsePlugins([]byte(s))
		parseVersion(s)
		parseControllers(1, s)
		listenedOn(s, "/x")
		parseCNI(s)
		parseSELinux(s)
		if p, err := parsePropagation(s, "/var/lib/kubelet"); err == nil && p.mount != "/" && !strings.HasPrefix("/var/lib/kubelet", p.mount) {
			t.Errorf("mounts: %+v", p)
		}
	})
}
