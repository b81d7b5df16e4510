package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func nfsVolume(name, server string, readOnly bool) v1.Volume {
	return named(name, v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: server, Path: "/srv", ReadOnly: readOnly}})
}

func TestNFS(t *testing.T) {
	h := newMemHost()
	m := newManager(t, h, newCluster())
	p := testPod(nfsVolume("one", "10.0.0.1", false), nfsVolume("two", "fd00::1", true))
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr(int64(7))}
	const dir = "/root/pods/u/volumes/kubernetes.io~nfs/"
	check := func(what string) {
		t.Helper()
		got := prepare(t, m, p)
		if got["one"] != (Mount{HostPath: dir + "one"}) || got["two"] != (Mount{HostPath: dir + "two", ReadOnly: true}) {
			t.Errorf("%s: %+v", what, got)
		}
		for name, want := range map[string]host.Mount{
			"one": {Source: "10.0.0.1:/srv", Target: dir + "one", Type: "nfs"},
			"two": {Source: "[fd00::1]:/srv", Target: dir + "two", Type: "nfs", Options: []string{"ro"}},
		} {
			if is := h.mounts[dir+name]; is == nil || is.Source != want.Source || is.Type != want.Type || !slices.Equal(is.Options, want.Options) {
				t.Errorf("%s: mounted is %+v, want %+v", what, is, want)
			}
		}
	}
	check("new")
	if h.count("ChownGroup") > 0 {
		t.Error("what is the server's was given to the pod's group")
	}
	h.forgetCalls()
	check("again")
	m = newManager(t, h, newCluster())
	check("by another process")
	if h.count("Mount") > 0 {
		t.Errorf("it was mounted again: %q", h.calls)
	}
	h.reboot()
	check("after a reboot")
	if err := m.Release(t.Context(), p.UID); err != nil || len(h.mounts) > 0 {
		t.Errorf("released: %v, mounted %v", err, h.mounts)
	}
}

func TestNFSOfAClaim(t *testing.T) {
	h := newMemHost()
	b := bound(v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "nas", Path: "/srv", ReadOnly: true}})
	b.volumes["pv"].Spec.MountOptions = []string{"nfsvers=4.1", "hard"}
	m := claimManager(t, h, b)
	const dir = "/root/pods/u/volumes/kubernetes.io~nfs/pv"
	// As in the kubelet, the claim decides whether it is read-only.
	if got := prepare(t, m, testPod(claimVolume(false)))["data"]; got != (Mount{HostPath: dir}) {
		t.Errorf("mount = %+v", got)
	}
	if is := h.mounts[dir]; is == nil || is.Source != "nas:/srv" || strings.Join(is.Options, ",") != "nfsvers=4.1,hard" {
		t.Errorf("mounted is %+v", is)
	}
	testutil.Must(t, m.Release(t.Context(), "u"))
	if got := prepare(t, m, testPod(claimVolume(true)))["data"]; !got.ReadOnly || h.mounts[dir] == nil || h.mounts[dir].Options[2] != "ro" {
		t.Errorf("mount = %+v", got)
	}
	block := v1.PersistentVolumeBlock
	b.volumes["pv"].Spec.VolumeMode = &block
	if _, err := claimManager(t, newMemHost(), b).Prepare(t.Context(), testPod(claimVolume(false))); err == nil || !strings.Contains(err.Error(), "a persistent volume of type nfs") {
		t.Errorf("as a device: %v", err)
	}
}

func TestNFSFails(t *testing.T) {
	for name, c := range map[string]struct {
		server string
		helper bool
		want   string
	}{
		"no client":   {"nas", false, `MountVolume.SetUp failed for volume "v" : mount nas:/srv: the host has no /sbin/mount.nfs: bad option. Install the NFS client of the host (Debian: nfs-common, others: nfs-utils)`},
		"refused":     {"nas", true, `MountVolume.SetUp failed for volume "v" : mount nas:/srv: bad option`},
		"no server":   {"", true, `MountVolume.SetUp failed for volume "v" : nfs server "" and path "/srv" name no export. Use a host name or an address, and an absolute path`},
		"a flag":      {"-x", true, `MountVolume.SetUp failed for volume "v" : nfs server "-x" and path "/srv" name no export. Use a host name or an address, and an absolute path`},
		"an IPv6 one": {"[fd00::1]", true, `MountVolume.SetUp failed for volume "v" : mount [fd00::1]:/srv: bad option`},
	} {
		h := newMemHost()
		h.fail["Mount"] = errors.New("bad option")
		if c.helper {
			h.put("/sbin/mount.nfs", node{mode: 0o755})
		}
		_, err := newManager(t, h, newCluster()).Prepare(t.Context(), testPod(nfsVolume("v", c.server, false)))
		if f := Failures(err); len(f) != 1 || hint.Text(f[0]) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The host mounts as root, and mount(8) has options that mount the host's own directories instead
// of a share: only options of NFS are allowed, and only a server as the source.
func TestNFSOptionsAreAShares(t *testing.T) {
	claim := func(source v1.NFSVolumeSource, options ...string) (*memHost, error) {
		h := newMemHost()
		b := bound(v1.PersistentVolumeSource{NFS: &source})
		b.volumes["pv"].Spec.MountOptions = options
		_, err := claimManager(t, h, b).Prepare(t.Context(), testPod(claimVolume(false)))
		return h, err
	}
	nas := v1.NFSVolumeSource{Server: "nas", Path: "/srv"}
	refused := map[string]string{ // by option; the value is the part that the error names
		"noatime,bind": "bind", "hard,,bind": "bind", "sec=sys,rbind,ro": "rbind", "nfsvers=\"4,bind\"": "nfsvers=\"4",
	}
	for _, o := range []string{"bind", "rbind", "move", "remount", "loop", "make-shared", "make-rprivate", "shared", "rslave",
		"X-mount.mkdir", "X-mount.subdir=a", "x-systemd.automount", "helper=x", "uhelper=x", "user", "users", "owner", "group", "noauto", "nofail",
		"bg", "addr=10.0.0.1", "bind=1", "hard=1", "ro=recursive", "Bind", " bind", "bind ", "no such", "-bind", "vers", "vers=", "vers=4 1", "retrans=3\nbind"} {
		refused[o] = o
	}
	for o, named := range refused {
		h, err := claim(nas, "hard", o)
		if want := fmt.Sprintf(`MountVolume.SetUp failed for volume "data" : the mount option %q of the persistent volume pv is not allowed`, named); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", o, err, want)
		}
		if h.count("Mount") > 0 {
			t.Errorf("%q: the machine was asked for %+v", o, h.mounts)
		}
	}
	good := []string{"nfsvers=4.1", "hard,timeo=600", "", "noresvport", "noatime", "nosuid,nodev", "sec=krb5p:krb5", "clientaddr=fe80::1%eth0", "proto=tcp6"}
	if h, err := claim(nas, good...); err != nil || len(h.mounts) != 1 {
		t.Errorf("options of nfs(5): %v", err)
	}
	for _, s := range []v1.NFSVolumeSource{
		{Server: "/var/lib/x", Path: "/r"}, {Server: "-x", Path: "/r"}, {Server: "", Path: "/r"}, {Server: "LABEL=x", Path: "/r"},
		{Server: "nas:/a", Path: "/r"}, {Server: "a b", Path: "/r"}, {Server: "[/x]", Path: "/r"}, {Server: "[fd00::1", Path: "/r"}, {Server: "fe80::1%../x", Path: "/r"},
		{Server: "nas,nas2", Path: "/r"}, {Server: ".", Path: "/r"}, {Server: "nas", Path: "r"}, {Server: "nas", Path: ""}, {Server: "nas", Path: "/r\nx"},
	} {
		want := fmt.Sprintf("nfs server %q and path %q name no export", s.Server, s.Path)
		if h, err := claim(s); err == nil || !strings.Contains(err.Error(), want) || h.count("Mount") > 0 {
			t.Errorf("%+v: %v", s, err)
		}
	}
	for _, server := range []string{"nas", "nas.example.", "nas_1", "10.0.0.1", "fd00::1", "[fd00::1]", "fe80::1%eth0", "::ffff:10.0.0.1"} {
		if h, err := claim(v1.NFSVolumeSource{Server: server, Path: "/with blank"}); err != nil || len(h.mounts) != 1 {
			t.Errorf("%s: %v", server, err)
		}
	}
}

// slowHost gets an answer only from servers named good.
type slowHost struct {
	*memHost
	now, most atomic.Int32
}

func (h *slowHost) Mount(ctx context.Context, m host.Mount) error {
	if strings.HasPrefix(m.Source, "good") {
		return h.memHost.Mount(ctx, m)
	}
	if n := h.now.Add(1); n > h.most.Load() {
		h.most.Store(n)
	}
	defer h.now.Add(-1)
	<-ctx.Done()
	return ctx.Err()
}

// Pods with a server that does not answer are tried one after the other, and hold only one of the
// host's few connections.
func TestNFSWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &slowHost{memHost: newMemHost()}
		c := newCluster()
		m, err := New(Config{Host: h, Objects: c, Tokens: c, RootDir: "/root", Allocatable: func() v1.ResourceList { return nil }})
		testutil.Must(t, err)
		var wg sync.WaitGroup
		began := time.Now()
		for i := range 6 {
			wg.Go(func() {
				p := testPod(nfsVolume("v", "away", false))
				p.UID = types.UID(rune('a' + i))
				if _, err := m.Prepare(t.Context(), p); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("err = %v", err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took != 6*nfsTime || h.most.Load() != 1 {
			t.Errorf("%d at a time, %s in all", h.most.Load(), took)
		}
	})
}

// A server that answers is mounted at once, however many mounts of others wait.
func TestNFSBesideServersThatAreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &slowHost{memHost: newMemHost()}
		c := newCluster()
		m, err := New(Config{Host: h, Objects: c, Tokens: c, RootDir: "/root", Allocatable: func() v1.ResourceList { return nil }})
		testutil.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		pod := func(uid, server string) *v1.Pod {
			p := testPod(nfsVolume("v", server, false))
			p.UID = types.UID(uid)
			return p
		}
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_, _ = m.Prepare(ctx, pod(fmt.Sprintf("lost-%d", i), "away-"+strconv.Itoa(i%3)))
				}
			})
		}
		mounted := func(uid string) {
			t.Helper()
			began := time.Now()
			if _, err := m.Prepare(ctx, pod(uid, "good")); err != nil || time.Since(began) > nfsTime {
				t.Errorf("a mount of a server that answers took %s: %v", time.Since(began), err)
			}
		}
		synctest.Wait()
		mounted("first")
		time.Sleep(10*nfsTime + time.Second) // while other attempts run
		synctest.Wait()
		began := time.Now()
		if mounted("second"); time.Since(began) != 0 {
			t.Errorf("it waited %s for servers that are known to be away", time.Since(began))
		}
		if got := h.now.Load(); got != nfsAway {
			t.Errorf("%d attempts at servers that are away hold connections, want %d", got, nfsAway)
		}
		cancel()
		wg.Wait()
	})
}

// TestNFSBesideServersNotTried: pods with many addresses that never answer hold one turn. A server
// that answered does not wait for them, a new one waits for two of them, and each gets its turn.
func TestNFSBesideServersNotTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &slowHost{memHost: newMemHost()}
		c := newCluster()
		m, err := New(Config{Host: h, Objects: c, Tokens: c, RootDir: "/root", Allocatable: func() v1.ResourceList { return nil }})
		testutil.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		mount := func(uid, server string) error {
			p := testPod(nfsVolume("v", server, false))
			p.UID = types.UID(uid)
			_, err := m.Prepare(ctx, p)
			return err
		}
		mounted := func(uid, server string, most time.Duration) {
			t.Helper()
			began := time.Now()
			if err := mount(uid, server); err != nil || time.Since(began) > most {
				t.Errorf("a mount of %s took %s: %v", server, time.Since(began), err)
			}
		}
		mounted("known", "good-known", 0)
		const dead = 40
		var wg sync.WaitGroup
		began := time.Now()
		var amid time.Duration
		for i := range dead {
			wg.Go(func() {
				for ctx.Err() == nil {
					_ = mount(fmt.Sprintf("dead-%d", i), fmt.Sprintf("dead-%d", i))
				}
			})
			if i == dead/2 {
				wg.Go(func() {
					if err := mount("amid", "good-amid"); err != nil {
						t.Error(err)
					}
					amid = time.Since(began)
				})
			}
			synctest.Wait()
		}
		for i := range 30 {
			mounted(fmt.Sprint("known-", i), "good-known", 0)
			if i == 10 {
				mounted("new", "good-new", 2*nfsTime)
			}
			if now := h.now.Load(); now > 1 {
				t.Fatalf("%d servers that may not answer hold turns", now)
			}
			time.Sleep(7 * time.Second)
			synctest.Wait()
		}
		time.Sleep((dead + 2) * nfsTime)
		synctest.Wait()
		if amid == 0 || amid > dead*nfsTime {
			t.Errorf("a new server amid them was mounted after %s", amid)
		}
		cancel()
		wg.Wait()
	})
}

// shellHost is a host over SSH: each call holds one of its shells.
type shellHost struct {
	*slowHost
	shells chan struct{}
}

func (h *shellHost) Mount(ctx context.Context, m host.Mount) error {
	select {
	case h.shells <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-h.shells }()
	return h.slowHost.Mount(ctx, m)
}

// At startup, two servers that do not answer, with two pods each, leave half of the host's shells
// to everything else at all times.
func TestNFSLeavesShells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &shellHost{&slowHost{memHost: newMemHost()}, make(chan struct{}, shell.MaxShells)}
		c := newCluster()
		m, err := New(Config{Host: h, Objects: c, Tokens: c, RootDir: "/root", Allocatable: func() v1.ResourceList { return nil }})
		testutil.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				p := testPod(nfsVolume("v", "away-"+strconv.Itoa(i%2), false))
				p.UID = types.UID(rune('a' + i))
				for ctx.Err() == nil {
					_, _ = m.Prepare(ctx, p)
				}
			})
		}
		for range 100 {
			time.Sleep(time.Second)
			synctest.Wait()
			if held := len(h.shells); held > shell.MaxShells-2 {
				t.Fatalf("%d of %d shells hang", held, shell.MaxShells)
			}
		}
		cancel()
		wg.Wait()
	})
}
