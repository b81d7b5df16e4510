package hosttest

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// NFSEnv names a directory that the host exports to itself, such as 127.0.0.1:/srv, with a
// server whose systemd unit is nfs-server. The directory has a file page. The variable is set
// only where there is one.
const NFSEnv = "BOWLINE_HOSTTEST_NFS"

// testShared tests a network file system: it is mounted once, and can be unmounted whether or
// not the server answers.
func testShared(t *testing.T, m *machine) {
	source := os.Getenv(NFSEnv)
	if source == "" {
		t.Skip(NFSEnv + " names no directory that the machine exports")
	}
	ctx := context.Background()
	d := m.dir(t)
	a := host.Mount{Source: source, Target: d + "/deep/with blank", Type: "nfs", Options: []string{"noexec"}}
	t.Cleanup(func() {
		m.run(t, "systemctl", "start", "nfs-server")
		testutil.Must(t, m.h.Unmount(ctx, a.Target))
	})
	for range 2 { // the second mount changes nothing
		testutil.Must(t, m.h.Mount(ctx, a))
		list, err := m.h.ListMounts(ctx, d)
		testutil.Must(t, err)
		if len(list) != 1 || list[0].Target != a.Target || list[0].Type != "nfs4" || list[0].Source != source {
			t.Fatalf("mounted is %+v", list)
		}
	}
	if !m.exists(t, a.Target+"/page") {
		t.Error("what is shared is not shown")
	}
	testutil.Must(t, m.h.Unmount(ctx, a.Target))
	testutil.Must(t, m.h.Unmount(ctx, a.Target))
	if m.exists(t, a.Target+"/page") {
		t.Error("it is shown after it was unmounted")
	}
	wrong := a
	wrong.Source += "/none"
	if err := m.h.Mount(ctx, wrong); err == nil || !strings.Contains(err.Error(), "No such file or directory") {
		t.Errorf("a directory that is not exported: %v", err)
	}

	testutil.Must(t, m.h.Mount(ctx, a))
	m.run(t, "systemctl", "stop", "nfs-server")
	began := time.Now()
	if err := m.h.Mount(ctx, a); err != nil {
		t.Errorf("what is mounted already, while its server is away: %v", err)
	}
	testutil.Must(t, m.h.Unmount(ctx, a.Target))
	list, err := m.h.ListMounts(ctx, d)
	testutil.Must(t, err)
	if took := time.Since(began); len(list) > 0 || took > time.Minute {
		t.Errorf("%+v after %s", list, took)
	}
	if err := m.h.Mount(ctx, a); err == nil {
		t.Error("a server that is away shares something")
	}
}

// testSharedType: with bind options mount(8) ignores the type. It then mounts a directory of the
// host, which must not stay where a network file system was requested.
func testSharedType(t *testing.T, m *machine) {
	if !m.isRoot {
		t.Skip("only root mounts")
	}
	ctx := context.Background()
	d := m.dir(t)
	testutil.Must(t, m.h.MkdirAll(ctx, d+"/x:", 0o755, nil))
	testutil.Must(t, m.h.MkdirAll(ctx, d+"/shown", 0o755, nil))
	m.write(t, d+"/shown/page", "the machine's own")
	m.run(t, "ln", "-s", d+"/shown", d+"/x:/r")
	for _, options := range [][]string{{"bind"}, {"noatime,rbind"}} {
		err := m.h.Mount(ctx, host.Mount{Source: d + "/x:/r", Target: d + "/target", Type: "nfs", Options: options})
		if err == nil || !strings.Contains(err.Error(), "instead of nfs") {
			t.Errorf("%q: %v", options, err)
		}
		list, err := m.h.ListMounts(ctx, d)
		testutil.Must(t, err)
		if len(list) > 0 || m.exists(t, d+"/target/page") {
			t.Errorf("%q: mounted is %+v", options, list)
		}
		testutil.Must(t, m.h.Unmount(ctx, d+"/target"))
	}
}
