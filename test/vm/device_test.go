package vm

import (
	"context"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// devices tests claims that are bound to local volumes on disks of the machine: one that pods use
// as a device, and others whose file systems are made, repaired and shared.
func devices(t *testing.T, machine *Machine, lab *labtest.Lab) {
	ctx, core := t.Context(), lab.Client.CoreV1()
	_, err := machine.Run(ctx, `cd /srv
		for disk in raw empty other torn; do
			truncate -s 320M $disk
			ln -sf "$(losetup -f --show $disk)" /srv/$disk-device
		done
		printf 'bytes of the disk' | dd of=/srv/raw-device conv=notrunc status=none
		mkfs.xfs -q /srv/other-device
		mkfs.ext4 -q /srv/torn-device
		# A mount count of one, and the word that it was not unmounted: fsck is to look.
		tune2fs -c 1 -C 5 /srv/torn-device >/dev/null`)
	testutil.Must(t, err)
	d := manage(t, machine, lab, "systemd")
	xfs := "xfs"
	d.local(t, "raw", v1.PersistentVolumeBlock, nil)
	d.local(t, "empty", v1.PersistentVolumeFilesystem, nil)
	d.local(t, "other", v1.PersistentVolumeFilesystem, &xfs)
	d.local(t, "torn", v1.PersistentVolumeFilesystem, nil)
	pod := func(name string, readOnly bool) {
		d.create(t, fmt.Sprintf(`
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  securityContext: {fsGroup: 4711}
  containers:
  - name: main
    image: %s
    command: [sleep, inf]
    volumeDevices: [{name: raw, devicePath: /dev/raw}]
    volumeMounts: [{name: empty, mountPath: /empty}, {name: other, mountPath: /other}, {name: torn, mountPath: /torn}]
  volumes:
  - {name: raw, persistentVolumeClaim: {claimName: raw}}
  - {name: empty, persistentVolumeClaim: {claimName: empty, readOnly: %t}}
  - {name: other, persistentVolumeClaim: {claimName: other}}
  - {name: torn, persistentVolumeClaim: {claimName: torn}}
`, name, image, readOnly))
		d.runs(t, name)
	}
	inPod := func(pod, script string) string {
		t.Helper()
		out, err := lab.Kubectl(ctx, "exec", pod, "--", "sh", "-c", script)
		testutil.Must(t, err)
		return strings.Join(strings.Fields(out.Stdout+out.Stderr), " ")
	}
	pod("first", false)
	if got := inPod("first", "dd if=/dev/raw bs=17 count=1 2>/dev/null"); got != "bytes of the disk" {
		t.Errorf("the device shows %q", got)
	}
	if got := inPod("first", "for v in empty other torn; do echo of $v >/$v/file; stat -c '%u %g' /$v/file; done"); strings.Count(got, "4711") != 3 {
		t.Errorf("who owns what is written: %q", got)
	}
	// A second pod shares the file systems, one of them read-only.
	pod("second", true)
	if got := inPod("second", "cat /empty/file /other/file /torn/file; echo x >/empty/more 2>&1 || echo refused"); !strings.HasPrefix(got, "of empty of other of torn") || !strings.Contains(got, "Read-only") {
		t.Errorf("the second pod has %q", got)
	}
	shown, err := machine.Run(ctx, "grep kubernetes.io~local-volume /proc/mounts | cut -d ' ' -f 2,3 | sed 's,.*/,,' | sort | uniq -c")
	testutil.Must(t, err)
	if got := strings.Join(strings.Fields(shown), " "); got != "2 empty ext4 2 other xfs 2 torn ext4" {
		t.Errorf("mounted is %q", got)
	}
	// A new Bowline process takes over everything unchanged; then the pods are deleted and made
	// again.
	d.bowline.Kill()
	testutil.Must(t, d.bowline.Start())
	d.until(t, "the node is ready again", d.ready)
	for _, name := range []string{"first", "second"} {
		testutil.Must(t, core.Pods("default").Delete(ctx, name, metav1.DeleteOptions{}))
	}
	for _, name := range []string{"first", "second"} {
		testutil.Must(t, lab.PodGone(ctx, "default", name, patience))
	}
	out, err := machine.Run(ctx, "grep kubelet/pods /proc/mounts; ls /var/lib/kubelet/pods; fsck -n /srv/torn-device >/dev/null && fsck -n /srv/empty-device >/dev/null || echo not clean")
	testutil.Must(t, err)
	if out != "" {
		t.Errorf("left on the machine: %s", out)
	}
	pod("third", false)
	if got := inPod("third", "cat /empty/file /other/file /torn/file"); got != "of empty of other of torn" {
		t.Errorf("the third pod has %q", got)
	}

	// A request for an unsuitable disk gets an error, and nothing is made on the disk.
	_, err = machine.Run(ctx, `cd /srv && truncate -s 320M parted
		# One partition of Linux, from sector 2048 on: a table of DOS, byte by byte.
		printf '\200\0\0\0\203\0\0\0\0\10\0\0\0\0\10\0' | dd of=parted bs=1 seek=446 conv=notrunc status=none
		printf '\125\252' | dd of=parted bs=1 seek=510 conv=notrunc status=none
		ln -sf "$(losetup -f --show parted)" /srv/parted-device`)
	testutil.Must(t, err)
	d.local(t, "parted", v1.PersistentVolumeFilesystem, nil)
	d.create(t, fmt.Sprintf(`
metadata: {name: fourth}
spec:
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers: [{name: main, image: %s, command: [sleep, inf], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: parted}}]
`, image))
	d.until(t, "the disk with partitions is refused", func(ctx context.Context) error {
		list, err := core.Events("default").List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedMount,involvedObject.name=fourth"})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if strings.Contains(e.Message, "what is on it is unknown data, probably partitions") {
				return nil
			}
		}
		return fmt.Errorf("%d events do not say so", len(list.Items))
	})
	out, err = machine.Run(ctx, "blkid -p -s PTTYPE -o value /srv/parted-device")
	testutil.Must(t, err)
	if out != "dos" {
		t.Errorf("the partitions are gone: %q", out)
	}
	for _, name := range []string{"third", "fourth"} {
		testutil.Must(t, core.Pods("default").Delete(ctx, name, metav1.DeleteOptions{}))
		testutil.Must(t, lab.PodGone(ctx, "default", name, patience))
	}
	d.release(t)
}

// local makes a claim that is bound to a disk of the machine.
func (d *managed) local(t *testing.T, name string, mode v1.PersistentVolumeMode, fsType *string) {
	t.Helper()
	core, none := d.lab.Client.CoreV1(), ""
	size, access := v1.ResourceList{v1.ResourceStorage: resource.MustParse("300Mi")}, []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	here := v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{d.name}}}}
	_, err := core.PersistentVolumes().Create(t.Context(), &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
		Capacity: size, AccessModes: access, VolumeMode: &mode,
		PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/srv/" + name + "-device", FSType: fsType}},
		NodeAffinity:           &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{here}}},
	}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	_, err = core.PersistentVolumeClaims("default").Create(t.Context(), &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeClaimSpec{
		AccessModes: access, StorageClassName: &none, VolumeName: name, VolumeMode: &mode, Resources: v1.VolumeResourceRequirements{Requests: size},
	}}, metav1.CreateOptions{})
	testutil.Must(t, err)
}
