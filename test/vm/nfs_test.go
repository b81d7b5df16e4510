package vm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// exported is the export that shares makes.
const exported = "127.0.0.1:/srv/share"

// shares makes the machine export a directory to itself, as another machine would.
func shares(t *testing.T, machine *Machine) {
	t.Helper()
	_, err := machine.Run(t.Context(), `mkdir -p /srv/share
		echo hello >/srv/share/page
		echo '/srv/share 127.0.0.1(rw,no_root_squash,no_subtree_check,insecure,fsid=1)' >/etc/exports
		systemctl restart nfs-server`)
	testutil.Must(t, err)
}

// nfs tests volumes that a server exports: named by a pod, and by a claim; read-only; with a server
// that refuses, and with one that goes away before the pod does.
func nfs(t *testing.T, machine *Machine, lab *labtest.Lab) {
	shares(t, machine)
	d := manage(t, machine, lab, "systemd")
	core, ctx := lab.Client.CoreV1(), t.Context()
	source := &v1.NFSVolumeSource{Server: "127.0.0.1", Path: "/srv/share"}
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	none := ""
	_, err := core.PersistentVolumes().Create(ctx, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "share"}, Spec: v1.PersistentVolumeSpec{
		Capacity: size, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}, MountOptions: []string{"nfsvers=4.2", "noatime"},
		PersistentVolumeSource: v1.PersistentVolumeSource{NFS: source},
	}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	_, err = core.PersistentVolumeClaims("default").Create(ctx, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "share"}, Spec: v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}, StorageClassName: &none, VolumeName: "share",
		Resources: v1.VolumeResourceRequirements{Requests: size},
	}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	pod := func(name, volume string) {
		d.create(t, fmt.Sprintf(`
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers:
  - {name: main, image: %s, command: [sleep, inf], volumeMounts: [{name: share, mountPath: /share}, {name: share, mountPath: /part, subPath: part}]}
  volumes: [{name: share, %s}]
`, name, image, volume))
	}
	_, err = machine.Run(ctx, "mkdir -p /srv/share/part && echo inner >/srv/share/part/file")
	testutil.Must(t, err)
	pod("claims", "persistentVolumeClaim: {claimName: share}")
	pod("reads", "nfs: {server: 127.0.0.1, path: /srv/share, readOnly: true}")
	pod("refused", "nfs: {server: 127.0.0.1, path: /srv/none}")
	d.runs(t, "claims", "reads")
	inPod := func(pod, script string) string {
		t.Helper()
		out, err := lab.Kubectl(ctx, "exec", pod, "--", "sh", "-c", script)
		testutil.Must(t, err)
		return strings.TrimSpace(out.Stdout + out.Stderr)
	}
	if got := inPod("claims", "cat /share/page /part/file && echo from claims >/share/new"); got != "hello\ninner" {
		t.Errorf("the claim's volume shows %q", got)
	}
	if got := inPod("reads", "cat /share/new; echo x >/share/other 2>&1 || echo refused"); !strings.HasPrefix(got, "from claims\nrefused") || !strings.Contains(got, "Read-only file system") {
		t.Errorf("the read-only volume shows %q", got)
	}
	shown, err := machine.Run(ctx, "grep kubernetes.io~nfs/ /proc/mounts")
	testutil.Must(t, err)
	for _, want := range []string{"/volumes/kubernetes.io~nfs/share nfs4 rw,noatime,vers=4.2,", "/volumes/kubernetes.io~nfs/share nfs4 ro,"} {
		if !strings.Contains(strings.ReplaceAll(shown, "relatime,", ""), want) {
			t.Errorf("no mount is %q:\n%s", want, shown)
		}
	}
	d.until(t, "the server's refusal is reported", func(ctx context.Context) error {
		list, err := core.Events("default").List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedMount,involvedObject.name=refused"})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if strings.Contains(e.Message, `volume "share"`) && strings.Contains(e.Message, "127.0.0.1:/srv/none") && strings.Contains(e.Message, "access denied by server") {
				return nil
			}
			err = errors.Join(err, errors.New(e.Message))
		}
		return fmt.Errorf("no event says so: %w", err)
	})
	_, err = machine.Run(ctx, "mkdir -p /srv/none/part; echo '/srv/none 127.0.0.1(rw,no_root_squash,no_subtree_check,insecure,fsid=2)' >>/etc/exports; exportfs -r")
	testutil.Must(t, err)
	d.runs(t, "refused")

	// A new Bowline process takes over the mounts unchanged.
	before, err := machine.Run(ctx, "grep kubernetes.io~nfs/ /proc/self/mountinfo | sort")
	testutil.Must(t, err)
	d.bowline.Kill()
	testutil.Must(t, d.bowline.Start())
	d.until(t, "the node is ready again", d.ready)
	testutil.Must(t, core.Pods("default").Delete(ctx, "reads", metav1.DeleteOptions{}))
	testutil.Must(t, lab.PodGone(ctx, "default", "reads", patience))
	after, err := machine.Run(ctx, "grep kubernetes.io~nfs/ /proc/self/mountinfo | sort")
	testutil.Must(t, err)
	for line := range strings.Lines(after) {
		if !strings.Contains(before, strings.TrimSpace(line)) {
			t.Errorf("it was mounted again: %s", line)
		}
	}

	// After the server goes away, pods can still be deleted: nothing waits for the server.
	_, err = machine.Run(ctx, "systemctl stop nfs-server")
	testutil.Must(t, err)
	began := time.Now()
	for _, name := range []string{"claims", "refused"} {
		testutil.Must(t, core.Pods("default").Delete(ctx, name, metav1.DeleteOptions{}))
	}
	for _, name := range []string{"claims", "refused"} {
		testutil.Must(t, lab.PodGone(ctx, "default", name, patience))
	}
	t.Logf("without their server the pods were gone after %s", time.Since(began).Round(time.Second))
	out, err := machine.Run(ctx, "grep kubernetes.io~nfs/ /proc/mounts; ls /var/lib/kubelet/pods; true")
	testutil.Must(t, err)
	if out != "" {
		t.Errorf("left on the machine: %s", out)
	}
	_, err = machine.Run(ctx, "systemctl start nfs-server")
	testutil.Must(t, err)
	d.release(t)
}
