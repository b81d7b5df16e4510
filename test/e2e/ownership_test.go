package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// attempt runs "bowline run" with a configuration in the host until it ends.
func attempt(t *testing.T, config string) labtest.Output {
	t.Helper()
	program, err := labtest.BuiltBowline()
	testutil.Must(t, err)
	file := filepath.Join(hostDir(t), "config.yaml")
	testutil.Must(t, os.WriteFile(file, []byte(config), 0o644))
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	out, err := labtest.Capture(lab.Exec(ctx, host, program, "run", "--config", file))
	testutil.Must(t, err)
	return out
}

// refused checks that the attempt ended with an error code and one sentence that contains the
// words.
func refused(t *testing.T, out labtest.Output, words ...string) {
	t.Helper()
	sentence := oneSentence(t, out)
	contains(t, "the sentence", sentence, words...)
	t.Logf("after %s: %s", out.Took.Round(10*time.Millisecond), sentence)
}

// oneSentence returns the sentence that the process ended with, and its hint below it.
func oneSentence(t *testing.T, out labtest.Output) string {
	t.Helper()
	if out.Code <= 0 {
		t.Errorf("exit code %d: it is to end by itself, and not with 0", out.Code)
	}
	equal(t, "stdout", out.Stdout, "")
	for _, trace := range []string{"goroutine ", "panic:", ".go:", "runtime error"} {
		if strings.Contains(out.Stderr, trace) {
			t.Errorf("there is a stack trace:\n%s", out.Stderr)
		}
	}
	sentence, hint, _ := strings.Cut(strings.TrimSpace(out.Stderr), "\nhint: ")
	if strings.Contains(sentence, "\n") || !strings.HasPrefix(sentence, "bowline: ") {
		t.Errorf("not one sentence, but:\n%s", out.Stderr)
	}
	return sentence + "\n" + hint
}

// A second Bowline on the machine is refused, whatever port it uses.
func TestSecondBowlineRefused(t *testing.T) {
	serial(t)
	config := strings.Replace(lab.ConfigYAML(host), "  server:\n", "  server:\n    port: 10260\n", 1)
	refused(t, attempt(t, config), "another Bowline", host, fmt.Sprint(bowline.PID()))
	// With another root directory on the same runtime it is still a second Bowline.
	refused(t, attempt(t, config+"  rootDirectory: "+hostDir(t)+"\n"), "another Bowline", host)
	if !bowline.Running() {
		t.Error("the first one has ended")
	}
}

// TestServiceIsMadeAgain: more than the Service default/kubernetes identifies a cluster. Anyone
// with the right may delete that Service, and kube-apiserver recreates it with another UID. The
// node continues, and a restart adopts what runs, even if it finds the owner file of a release that
// knew only the Service.
func TestServiceIsMadeAgain(t *testing.T) {
	serial(t)
	ns := namespace(t)
	dir := hostDir(t)
	counted(t, ns, "lives", dir, 3)
	before := readyPods(t, ns, "lives", 3)
	for _, first := range []bool{false, true} {
		replaceService(t)
		name := fmt.Sprintf("beside-%v", first)
		create(t, ns, podThatSleeps(name))
		beside := ready(t, ns, name)
		withoutBowline(t, func() {
			if first {
				forgetWitnesses(t)
			}
		})
		same(t, beside, ready(t, ns, name))
		unchanged(t, dir, before, readyPods(t, ns, "lives", 3))
	}
}

// The same for a machine that runs only static pods, with an owner file of the first releases:
// their mirror pods identify the owner.
func TestServiceIsMadeAgainForStaticPods(t *testing.T) {
	serial(t)
	ns := namespace(t)
	t.Cleanup(func() { _ = os.Remove(filepath.Join(static.dir, "alone.yaml")) })
	static.put(t, ns, "alone.yaml", `
apiVersion: v1
kind: Pod
metadata: {name: alone, namespace: $NS}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: $TOOLBOX, command: [sleep, inf]}]
`)
	before := ready(t, ns, "alone-"+host)
	withoutBowline(t, func() {
		replaceService(t)
		pods, err := lab.Client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + host})
		testutil.Must(t, err)
		for i := range pods.Items {
			if p := &pods.Items[i]; p.Annotations[v1.MirrorPodAnnotationKey] == "" {
				testutil.Must(t, lab.Client.CoreV1().Pods(p.Namespace).Delete(t.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
			}
		}
		forgetWitnesses(t)
	})
	same(t, before, ready(t, ns, "alone-"+host))
}

// replaceService deletes the Service kubernetes and waits for its successor.
func replaceService(t *testing.T) {
	t.Helper()
	services := lab.Client.CoreV1().Services(metav1.NamespaceDefault)
	was, err := services.Get(t.Context(), "kubernetes", metav1.GetOptions{})
	testutil.Must(t, err)
	testutil.Must(t, services.Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}))
	until(t, "kube-apiserver makes the Service again", func(ctx context.Context) error {
		now, err := services.Get(ctx, "kubernetes", metav1.GetOptions{})
		if err == nil && now.UID == was.UID {
			err = errors.New("it is the one that was deleted")
		}
		return err
	})
}

// forgetWitnesses writes the owner file in the format of the first releases.
func forgetWitnesses(t *testing.T) {
	t.Helper()
	file := filepath.Join(lab.Host(host).Root, "/var/lib/kubelet/bowline/owner")
	data := testutil.ReadFile(t, file)
	record := map[string]any{}
	testutil.Must(t, json.Unmarshal(data, &record))
	delete(record, "witnesses")
	delete(record, "schemaVersion")
	data, err := json.Marshal(record)
	testutil.Must(t, err)
	testutil.Must(t, os.WriteFile(file, data, 0o600))
}

// A machine that belongs to another cluster or another node is refused, and the owner file does not
// change.
func TestOtherOwnerRefused(t *testing.T) {
	serial(t)
	file := filepath.Join(lab.Host(host).Root, "/var/lib/kubelet/bowline/owner")
	withoutBowline(t, func() {
		// A Bowline that leaves nothing of its own removes its owner file, but here the cluster's
		// DNS runs.
		ours := testutil.ReadFile(t, file)
		defer func() { testutil.Must(t, os.WriteFile(file, ours, 0o600)) }()
		for field, other := range map[string]string{
			"clusterUID": "00000000-1111-2222-3333-444444444444",
			"nodeName":   "somebody",
		} {
			record := map[string]any{}
			testutil.Must(t, json.Unmarshal(ours, &record))
			record[field] = other
			if field == "clusterUID" { // nothing that the file knows matches this cluster
				record["witnesses"] = map[string]any{"serviceUID": other, "nodeUID": other}
			}
			data, err := json.Marshal(record)
			testutil.Must(t, err)
			testutil.Must(t, os.WriteFile(file, data, 0o600))
			refused(t, attempt(t, lab.ConfigYAML(host)), other, "owner file")
			after := testutil.ReadFile(t, file)
			if !bytes.Equal(after, data) {
				t.Errorf("the owner file was changed: %s", after)
			}
		}
	})
}

// canary is a pod as a kubelet makes it, made directly over the CRI.
type canary struct {
	sandbox, container, image string
	logs, dir                 string // on the machine, from outside the host
}

func newCanary(t *testing.T) canary {
	t.Helper()
	const uid = "ca9a4100-0000-4000-8000-000000000001"
	ctx := t.Context()
	labels := map[string]string{"io.kubernetes.pod.name": "canary", "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": uid}
	logs := "/var/log/pods/default_canary_" + uid
	root := lab.Host(host).Root
	c := canary{logs: filepath.Join(root, logs), dir: filepath.Join(root, "/var/lib/kubelet/pods", uid)}
	testutil.Must(t, os.MkdirAll(filepath.Join(c.logs, "main"), 0o755))
	testutil.Must(t, os.MkdirAll(filepath.Join(c.dir, "volumes/kubernetes.io~empty-dir/scratch"), 0o755))
	testutil.Must(t, os.WriteFile(filepath.Join(c.dir, "volumes/kubernetes.io~empty-dir/scratch/file"), []byte("kept"), 0o644))
	testutil.Must(t, os.MkdirAll(filepath.Join(root, "/var/log/containers"), 0o755))
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "canary", Namespace: "default", Uid: uid},
		LogDirectory: logs, Labels: labels,
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/kubepods/besteffort/pod" + uid,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}}},
	}
	// An image that nothing else here uses.
	c.image = webV2
	ref, err := runtime.PullImage(ctx, &runtimeapi.ImageSpec{Image: c.image}, nil, sandbox)
	testutil.Must(t, err)
	c.sandbox, err = runtime.RunPodSandbox(ctx, sandbox, "")
	testutil.Must(t, err)
	containerLabels := map[string]string{"io.kubernetes.container.name": "main"}
	for k, v := range labels {
		containerLabels[k] = v
	}
	c.container, err = runtime.CreateContainer(ctx, c.sandbox, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: ref},
		LogPath: "main/0.log", Labels: containerLabels,
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}}},
	}, sandbox)
	testutil.Must(t, err)
	testutil.Must(t, runtime.StartContainer(ctx, c.container))
	testutil.Must(t, os.Symlink(logs+"/main/0.log", filepath.Join(root, "/var/log/containers", "canary_default_main-"+c.container+".log")))
	return c
}

// unharmed checks that everything of the canary is as it was made.
func (c canary) unharmed(t *testing.T, when string) {
	t.Helper()
	ctx := t.Context()
	if s, err := runtime.PodSandboxStatus(ctx, c.sandbox); err != nil || s.State != runtimeapi.PodSandboxState_SANDBOX_READY {
		t.Errorf("%s: the canary's sandbox: %v, %v", when, s, err)
	}
	if s, err := runtime.ContainerStatus(ctx, c.container); err != nil || s.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("%s: the canary's container: %v, %v", when, s, err)
	}
	if image, err := runtime.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: c.image}); err != nil || image == nil {
		t.Errorf("%s: the canary's image: %v, %v", when, image, err)
	}
	if data, err := os.ReadFile(filepath.Join(c.logs, "main/0.log")); err != nil || len(data) == 0 {
		t.Errorf("%s: the canary's log: %q, %v", when, data, err)
	}
	if data, err := os.ReadFile(filepath.Join(c.dir, "volumes/kubernetes.io~empty-dir/scratch/file")); err != nil || string(data) != "kept" {
		t.Errorf("%s: the canary's volume: %q, %v", when, data, err)
	}
	link := filepath.Join(lab.Host(host).Root, "/var/log/containers", "canary_default_main-"+c.container+".log")
	if _, err := os.Lstat(link); err != nil {
		t.Errorf("%s: the canary's link: %v", when, err)
	}
}

func (c canary) remove(t *testing.T) {
	t.Helper()
	ctx := context.Background()
	_ = runtime.StopPodSandbox(ctx, c.sandbox)
	if err := runtime.RemovePodSandbox(ctx, c.sandbox); err != nil {
		t.Error(err)
	}
	_ = os.RemoveAll(c.logs)
	_ = os.RemoveAll(c.dir)
	_ = os.Remove(filepath.Join(lab.Host(host).Root, "/var/log/containers", "canary_default_main-"+c.container+".log"))
}

// A kubelet's pods on the runtime are refused, unless the configuration allows foreign pods; and
// nothing of theirs is touched, whatever we do.
func TestForeignPods(t *testing.T) {
	if !full {
		onlyLocal(t, "only the runtime is asked for foreign pods, so the kind of host does not matter; BOWLINE_E2E_FULL=1 runs it")
	}
	serial(t)
	ns := namespace(t)
	withoutBowline(t, func() {
		c := newCanary(t)
		defer c.remove(t)
		until(t, "the canary has written a log", func(context.Context) error {
			data, err := os.ReadFile(filepath.Join(c.logs, "main/0.log"))
			if err == nil && len(data) == 0 {
				err = errors.New("it is empty")
			}
			return err
		})
		c.unharmed(t, "at first")
		refused(t, attempt(t, lab.ConfigYAML(host)), "default/canary", "kubelet", "allowForeignPods")
		c.unharmed(t, "after the refusal")

		config, err := lab.WriteConfig(host, "allowForeignPods: true")
		testutil.Must(t, err)
		beside := &labtest.Bowline{Lab: lab, Host: host, Config: config, Args: []string{"-v=2"}, LogPath: bowline.LogPath}
		testutil.Must(t, beside.Start())
		defer func() { testutil.Must(t, beside.Stop()) }()
		deployment(t, ns, "beside", 3)
		readyPods(t, ns, "beside", 3)
		c.unharmed(t, "beside our pods")
		// The kill leaves pods to adopt; the canary is not one of them.
		beside.Kill()
		testutil.Must(t, beside.Start())
		_, err = lab.NodeReady(t.Context(), host, v1.ConditionTrue, 2*time.Minute)
		testutil.Must(t, err)
		deleteDeployment(t, ns, "beside")
		until(t, "our pods are collected", func(ctx context.Context) error {
			list, err := runtime.ListPodSandbox(ctx, nil)
			if err != nil {
				return err
			}
			for _, s := range list {
				if s.Metadata.GetNamespace() == ns {
					return fmt.Errorf("sandbox of %s is there", s.Metadata.GetName())
				}
			}
			return nil
		})
		// Two sweeps run within this time, and one has something of ours to collect.
		testutil.Must(t, labtest.Holds(t.Context(), 65*time.Second, "bowline runs", running(beside)))
		c.unharmed(t, "after our pods have gone and a sweep has come")
		if _, err := lab.Client.CoreV1().Pods("default").Get(t.Context(), "canary", metav1.GetOptions{}); err == nil {
			t.Error("the canary has become a pod of the cluster")
		}
	})
}
