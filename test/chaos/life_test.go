package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/test/labtest"
)

const (
	toolbox   = "registry.lab/toolbox:lab"
	configMap = "greeting"
	// patience bounds one step of a life. It is many times what the step takes, because the machine
	// may be busy.
	patience = 45 * time.Second
)

// namespace holds all pods of this run.
var namespace string

// script is a container's command. It writes its entry (ENTER in body, or at the beginning) and, on
// SIGTERM or at its end, its leave (LEAVE in body), each with an ID of this execution, the pod's UID
// and the time.
func script(name, body string) []string {
	if !strings.Contains(body, "ENTER") {
		body = "ENTER\n" + body
	}
	body = strings.ReplaceAll(body, "ENTER", "append /w/log "+name+" enter $I $POD_UID $NODE $(date +%T)")
	body = strings.ReplaceAll(body, "LEAVE", "append /w/log "+name+" leave $I $POD_UID $NODE $(date +%T); exit 0")
	return []string{"sh", "-c", "I=$(cat /proc/sys/kernel/random/uuid)\n" + body}
}

// untilTold runs until SIGTERM and takes a little time to leave, which exposes a caller that does
// not wait for it. It enters with its trap set.
const untilTold = `trap "sleep 0.15; LEAVE" TERM
ENTER
sleep inf & wait`

func container(name, body string) v1.Container {
	field := func(path string) *v1.EnvVarSource {
		return &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}
	}
	return v1.Container{
		Name: name, Image: toolbox, ImagePullPolicy: v1.PullIfNotPresent, Command: script(name, body),
		Env:          []v1.EnvVar{{Name: "POD_UID", ValueFrom: field("metadata.uid")}, {Name: "NODE", ValueFrom: field("spec.nodeName")}},
		VolumeMounts: []v1.VolumeMount{{Name: "w", MountPath: "/w"}},
	}
}

func hostPath(dir string) v1.Volume {
	return v1.Volume{Name: "w", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: dir}}}
}

func execAction(words ...string) *v1.ExecAction { return &v1.ExecAction{Command: words} }

func probe(what string) *v1.Probe {
	return &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: execAction("append", "/w/log", what)}, PeriodSeconds: 1, TimeoutSeconds: 10}
}

// lifePod is the pod of the kill matrix. Its subPath is a mount that its release has to look for; the
// pods of the other parts have only mounts that the node knows.
func lifePod(name, node, dir string) *v1.Pod {
	grace := int64(10)
	init := container("init", "cat /cm/text; LEAVE")
	init.ImagePullPolicy = v1.PullAlways
	main := container("main", "test -s /text || exit 1\n"+untilTold)
	for _, c := range []*v1.Container{&init, &main} {
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "cm", MountPath: "/cm"})
	}
	main.VolumeMounts = append(main.VolumeMounts, v1.VolumeMount{Name: "cm", MountPath: "/text", SubPath: "text"})
	main.ReadinessProbe, main.LivenessProbe = probe("readiness"), probe("liveness")
	main.Lifecycle = &v1.Lifecycle{
		PostStart: &v1.LifecycleHandler{Exec: execAction("append", "/w/log", "postStart")},
		PreStop:   &v1.LifecycleHandler{Exec: execAction("append", "/w/log", "preStop")},
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: &grace,
			InitContainers: []v1.Container{init}, Containers: []v1.Container{main},
			Volumes: []v1.Volume{hostPath(dir), {Name: "cm", VolumeSource: v1.VolumeSource{
				ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: configMap}}}}},
		},
	}
}

// shared makes a directory that the hosts' pods can write to.
func shared(parent, name string) (string, error) {
	dir := filepath.Join(parent, name)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o777)
}

// life takes one pod through its life on the node while the fault is armed, and returns the
// violations.
func (n *node) life(ctx context.Context, name string, f *fault) []string {
	ctx, cancel := n.oneCase(ctx)
	defer cancel(nil)
	fail := func(err error, w *witness) []string {
		bad := []string{err.Error()}
		if cause := context.Cause(ctx); cause != nil {
			bad = append(bad, cause.Error())
		}
		if w != nil {
			if p := w.last(); p != nil {
				bad = append(bad, "the pod: "+labtest.Describe(p))
			}
			_, faults := w.seen()
			bad = append(bad, faults...)
		}
		return bad
	}
	dir, err := shared(n.dir, name)
	if err != nil {
		return fail(err, nil)
	}
	creates, starts, err := n.tasks.Counts()
	if err != nil {
		return fail(err, nil)
	}
	armed := f
	if f != nil && f.random() {
		armed = nil
	}
	if err := n.arm(armed); err != nil {
		return fail(err, nil)
	}
	w, err := watchPod(ctx, n, namespace, name, filepath.Join(dir, "log"))
	if err != nil {
		return fail(err, nil)
	}
	defer w.stop()
	pods := n.lab.Client.CoreV1().Pods(namespace)
	if _, err := pods.Create(ctx, lifePod(name, n.name, dir), metav1.CreateOptions{}); err != nil {
		return fail(err, w)
	}
	if f != nil && f.random() {
		defer time.AfterFunc(f.delay, n.kill).Stop()
	}
	if err := w.lives(ctx, f == nil || !f.kills()); err != nil {
		_ = n.forceAway(ctx, name)
		return fail(err, w)
	}
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fail(err, w)
	}
	select {
	case <-w.gone:
	case <-ctx.Done():
		return fail(ctx.Err(), w)
	case <-time.After(patience):
		_ = n.forceAway(ctx, name)
		return fail(fmt.Errorf("the pod was not gone %v after its deletion", patience), w)
	}
	var bad []string
	if f != nil {
		if err := n.awaitStrike(ctx, f); err != nil {
			bad = append(bad, err.Error())
		}
	}
	if err := n.clean(ctx, patience); err != nil {
		bad = append(bad, err.Error())
	}
	e := trace{fault: f, lines: w.lines(), inside: w.unleft(), cut: f != nil && cutStart(n.since(), startContainer),
		cutSandbox: f != nil && cutStart(n.since(), runSandbox)}
	var seen []string
	e.versions, seen = w.seen()
	nowCreates, nowStarts, err := n.tasks.Counts()
	if err != nil {
		return fail(err, w)
	}
	e.creates, e.starts = nowCreates-creates, nowStarts-starts
	bad = append(append(bad, seen...), e.check()...)
	return append(bad, n.badExits(f)...)
}

// badExits checks that the process ended only where a fault killed it. If the fault has not struck,
// awaitStrike has reported it, and no process should have ended.
func (n *node) badExits(f *fault) []string {
	exits := n.tookExits()
	if len(exits) == 0 && f != nil && !f.random() && !struck(n.since()) {
		return nil
	}
	want := 0
	if f != nil && f.kills() {
		want = 1
	}
	if len(exits) != want || want == 1 && exits[0] != f.exit() {
		return []string{fmt.Sprintf("the process ended with %v, want %d ends (-1 is by SIGKILL, 0 by SIGTERM)", exits, want)}
	}
	return nil
}

// lives waits until the pod is Ready and both of its probes have run; with hooked also until its
// postStart has run, which may be delayed.
func (w *witness) lives(ctx context.Context, hooked bool) error {
	return labtest.Until(ctx, patience, "the pod Ready and probed", func(context.Context) error {
		p := w.last()
		if p == nil || !labtest.IsReady(p) {
			return fmt.Errorf("it is not Ready")
		}
		ran := map[string]bool{}
		for _, l := range w.lines() {
			ran[l[0]] = true
		}
		if !ran["readiness"] || !ran["liveness"] {
			return fmt.Errorf("its probes have not run")
		}
		if hooked && !ran["postStart"] {
			return fmt.Errorf("its postStart has not run")
		}
		return nil
	})
}

// forceAway deletes a pod that failed a case, so that the next case starts clean.
func (n *node) forceAway(ctx context.Context, name string) error {
	zero := int64(0)
	err := n.lab.Client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return n.clean(ctx, patience/3)
}
