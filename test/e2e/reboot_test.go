package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// After a reboot a machine has another boot ID, and its runtime has sandboxes and containers that
// have ended. The node reports the reboot; the pods start at once, without back-off, because
// nothing has crashed.
func TestRebooted(t *testing.T) {
	serial(t)
	ns := namespace(t)
	dir := hostDir(t)
	counted(t, ns, "lives", dir, 2)
	before := readyPods(t, ns, "lives", 2, 2*time.Minute)

	const bootID, file = "5ca1ab1e-0000-4000-8000-00000b0071d0", "/proc/sys/kernel/random/boot_id"
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "boot_id"), []byte(bootID+"\n"), 0o644))
	withoutBowline(t, func() {
		onHost(t, "mount", "--bind", filepath.Join(dir, "boot_id"), file)
		list, err := runtime.ListPodSandbox(t.Context(), nil)
		testutil.Must(t, err)
		for _, s := range list {
			if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
				testutil.Must(t, runtime.StopPodSandbox(t.Context(), s.Id))
			}
		}
	})
	defer withoutBowline(t, func() { onHost(t, "umount", file) })
	began := time.Now()

	until(t, "the node has the machine's boot ID", func(ctx context.Context) error {
		node, err := lab.Client.CoreV1().Nodes().Get(ctx, host, metav1.GetOptions{})
		if err == nil && node.Status.NodeInfo.BootID != bootID {
			err = fmt.Errorf("it is %s", node.Status.NodeInfo.BootID)
		}
		return err
	})
	findEvent(t, lab, metav1.NamespaceDefault, "involvedObject.kind=Node,involvedObject.name="+host+",reason=Rebooted", "")
	for i := range before {
		p := podIs(t, ns, before[i].Name, time.Minute, "started again", func(p *v1.Pod) error {
			if n := labtest.Restarts(p); n != 1 || !labtest.IsReady(p) {
				return fmt.Errorf("%d restarts, ready %v", n, labtest.IsReady(p))
			}
			return nil
		})
		if p.UID != before[i].UID {
			t.Errorf("%s is another pod", p.Name)
		}
		equal(t, "starts of "+p.Name, starts(t, dir, p.Name), 2)
	}
	t.Logf("the pods are Ready %s after Bowline was started", time.Since(began).Round(time.Millisecond))
	events, err := lab.Client.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=BackOff"})
	testutil.Must(t, err)
	for _, e := range events.Items {
		t.Errorf("%s: %s: %s", e.InvolvedObject.Name, e.Reason, e.Message)
	}
	// CoreDNS is one of the pods that the reboot stopped.
	_, err = lab.ReadyPods(t.Context(), "kube-system", "k8s-app=kube-dns", 1, time.Minute)
	testutil.Must(t, err)
}
