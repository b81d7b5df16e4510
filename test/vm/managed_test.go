package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// managed is the machine as a node of the lab, managed by a Bowline beside both.
type managed struct {
	machine *Machine
	lab     *labtest.Lab
	bowline *labtest.Bowline
	name    string // of the node
}

// manage starts containerd on the machine and a Bowline for it, and waits until the node is ready
// for pods. extra are lines of its configuration. Everything ends with the test.
func manage(t *testing.T, machine *Machine, lab *labtest.Lab, driver string, extra ...string) *managed {
	t.Helper()
	d := &managed{machine: machine, lab: lab, name: lab.Status.Hosts[0].Name}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	testutil.Must(t, machine.Containerd(ctx, lab, driver))
	config := filepath.Join(t.TempDir(), "bowline.yaml")
	testutil.Must(t, os.WriteFile(config, []byte(machine.Config(lab, extra...)), 0o644))
	d.bowline = &labtest.Bowline{Lab: lab, Host: d.name, Wire: &labtest.Wire{}, Config: config, LogPath: filepath.Join(lab.Dir, "bowline-"+filepath.Base(t.Name())+".log")}
	testutil.Must(t, d.bowline.Start())
	t.Cleanup(func() {
		d.bowline.Kill()
		if t.Failed() {
			log, _ := os.ReadFile(d.bowline.LogPath)
			t.Logf("Bowline's log ends:\n%s", log[max(0, len(log)-6000):])
		}
	})
	d.until(t, "the node is ready", d.ready)
	d.until(t, "the default service account", func(ctx context.Context) error {
		_, err := lab.Client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return d
}

func (d *managed) until(t *testing.T, what string, condition func(context.Context) error) {
	t.Helper()
	testutil.Must(t, labtest.Until(t.Context(), patience, what, condition))
}

func (d *managed) ready(ctx context.Context) error {
	n, err := d.lab.Client.CoreV1().Nodes().Get(ctx, d.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady && c.Status == v1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("the node is not ready: %+v", n.Status.Conditions)
}

// create makes a pod of a manifest in the namespace default.
func (d *managed) create(t *testing.T, text string) {
	t.Helper()
	p := &v1.Pod{}
	testutil.Must(t, yaml.UnmarshalStrict([]byte(text), p))
	_, err := d.lab.Client.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{})
	testutil.Must(t, err)
}

// runs waits until the pods are ready.
func (d *managed) runs(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := d.lab.PodReady(t.Context(), "default", name, patience)
		testutil.Must(t, err)
	}
}

// release releases the machine and deletes the node.
func (d *managed) release(t *testing.T) {
	t.Helper()
	d.bowline.Kill()
	program, err := labtest.BuiltBowline()
	testutil.Must(t, err)
	m := d.machine
	release := exec.CommandContext(t.Context(), program, "host", "release", "--max-grace", "2s", "--identity-file", m.Key, "--host-key", m.HostKey, m.Endpoint())
	if out, err := release.CombinedOutput(); err != nil {
		t.Fatalf("host release: %v\n%s", err, out)
	}
	testutil.Must(t, d.lab.Client.CoreV1().Nodes().Delete(t.Context(), d.name, metav1.DeleteOptions{}))
	_, err = m.Run(t.Context(), "systemctl stop containerd")
	testutil.Must(t, err)
}
