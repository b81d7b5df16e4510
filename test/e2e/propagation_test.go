package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Containers with the volume v at /v: one that shares its mounts there, one that sees those of others,
// and one that does neither.
const (
	mounts  = "{name: mounts, image: $TOOLBOX, command: [sleep, inf], securityContext: {privileged: true}, volumeMounts: [{name: v, mountPath: /v, mountPropagation: Bidirectional}]}"
	watches = "{name: watches, image: $TOOLBOX, command: [sleep, inf], volumeMounts: [{name: v, mountPath: /v, mountPropagation: HostToContainer}]}"
	alone   = "{name: alone, image: $TOOLBOX, command: [sleep, inf], volumeMounts: [{name: v, mountPath: /v}]}"
)

// A mount that one pod makes with Bidirectional reaches the host, and from there a pod with
// HostToContainer. One that the host makes reaches both. Neither reaches a pod without propagation.
func TestMountPropagation(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	dir := hostDir(t)
	for _, name := range []string{"by-pod", "by-host"} {
		testutil.Must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	containers := map[string]string{"mounts": mounts, "watches": watches, "alone": alone}
	for name, container := range containers {
		create(t, ns, brief(name, "containers: ["+container+"]\n  volumes: [{name: v, hostPath: {path: "+dir+"}}]"))
	}
	for name := range containers {
		ready(t, ns, name)
	}
	byPod, byHost := filepath.Join(dir, "by-pod"), filepath.Join(dir, "by-host")
	t.Cleanup(func() {
		_ = lab.Exec(context.Background(), host, "umount", byPod).Run() // the pod has unmounted it, unless the test failed
		onHost(t, "umount", byHost)
	})
	inPod(t, ns, "mounts", "mount -t tmpfs tmpfs /v/by-pod && echo pod >/v/by-pod/file")
	inHost(t, "sh", "-c", `mount -t tmpfs tmpfs "$1" && echo host >"$1/file"`, "sh", byHost)
	equal(t, "what the host sees of the pod's mount", inHost(t, "cat", byPod+"/file"), "pod\n")
	for name, want := range map[string]string{"mounts": "pod\nhost", "watches": "pod\nhost", "alone": ""} {
		equal(t, "what the pod "+name+" sees", inPod(t, ns, name, "cat /v/by-pod/file /v/by-host/file 2>/dev/null; true"), want)
	}
	inPod(t, ns, "mounts", "umount /v/by-pod")
	until(t, "the pod's mount is gone from the host", unmounted(t, byPod))
	equal(t, "what another pod sees then", inPod(t, ns, "watches", "ls /v/by-pod"), "")
}

const rootDirectory = "/var/lib/kubelet"

// On a host whose root directory is in a private mount, as on one that systemd has not booted, Bowline
// makes the directory shared before its pods need it: otherwise the runtime refuses containers with
// Bidirectional or HostToContainer on an emptyDir.
func TestRootDirectoryIsShared(t *testing.T) {
	serial(t)
	ns := namespace(t)
	withoutBowline(t, func() {
		inHost(t, "mount", "--make-private", rootDirectory)
		if err := isShared(t, rootDirectory); err == nil {
			t.Fatal("the directory is shared all the same, so the test would show nothing")
		}
	})
	until(t, "the root directory is shared", func(context.Context) error { return isShared(t, rootDirectory) })

	p := create(t, ns, brief("both", "containers: ["+mounts+", "+watches+"]\n  volumes: [{name: v, emptyDir: {}}]"))
	t.Cleanup(func() { // unless the pod has unmounted it
		_ = lab.Exec(context.Background(), host, "umount", filepath.Join(rootDirectory, "pods", string(p.UID), "volumes/kubernetes.io~empty-dir/v/m")).Run()
	})
	ready(t, ns, "both")
	inContainer := func(container, script string) string {
		t.Helper()
		return kubectl(t, "exec", "-n", ns, "both", "-c", container, "--", "sh", "-c", script)
	}
	inContainer("mounts", "mkdir /v/m && mount -t tmpfs tmpfs /v/m && echo seen >/v/m/file")
	equal(t, "what the other container sees", inContainer("watches", "cat /v/m/file"), "seen\n")
	inContainer("mounts", "umount /v/m")
	equal(t, "what it sees then", inContainer("watches", "ls /v/m"), "")
}

// isShared returns an error unless the topmost mount of the host at point is shared.
func isShared(t *testing.T, point string) error {
	t.Helper()
	err := fmt.Errorf("%s is not a mount point", point)
	for line := range strings.Lines(string(testutil.ReadFile(t, fmt.Sprintf("/proc/%d/mountinfo", lab.Host(host).PID)))) {
		// ID, parent, device, root, mount point and options; then optional fields up to a hyphen.
		fields := strings.Fields(line)
		if fields[4] != point {
			continue
		}
		err = nil
		end := slices.Index(fields, "-")
		if !slices.ContainsFunc(fields[6:end], func(f string) bool { return strings.HasPrefix(f, "shared:") }) {
			err = errors.New("not shared: " + strings.TrimSpace(line))
		}
	}
	return err
}
