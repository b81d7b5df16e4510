package storm

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/test/labtest"
)

const (
	toolbox   = "registry.lab/toolbox:lab"
	web       = "registry.lab/web:v1"
	configMap = "greeting"

	// labelKind names the workload of a pod; for a bare pod, the workload that the test maintains.
	labelKind = "storm"
	// annotationEnds lists the exit codes with which containers end by themselves: "main=5 main=0".
	annotationEnds = "storm/ends"
)

// workload is the desired state: replicas of a template, maintained by a controller or by the test.
type workload struct {
	name     string
	kind     string // Deployment, StatefulSet, Job, or Pod: bare pods that the test maintains
	replicas int
	template v1.PodTemplateSpec
	// steady is set if every pod must be Ready in the end.
	steady bool
}

// workloads returns workloads of n pods in all.
func workloads(n int) []workload {
	parts := []struct {
		share int // of 110
		w     workload
	}{
		{18, workload{name: "web", kind: "Deployment", steady: true, template: template(nil, webContainer(httpProbe("/readyz"), httpProbe("/healthz")))}},
		{14, workload{name: "config", kind: "Deployment", steady: true, template: withInit(template(nil,
			webContainer(tcpProbe(), httpProbe("/healthz"))))}},
		{12, workload{name: "sidecar", kind: "Deployment", steady: true, template: withSidecar(template(nil,
			webContainer(httpProbe("/readyz"), httpProbe("/healthz"))))}},
		{10, workload{name: "exec", kind: "Deployment", steady: true, template: template(nil,
			box("main", untilTold, execProbe("test -e /tmp/up"), nil), box("other", untilTold, nil, nil))}},
		{10, workload{name: "set", kind: "StatefulSet", steady: true, template: template(nil, webContainer(httpProbe("/readyz"), tcpProbe()))}},
		{4, workload{name: "ordered", kind: "StatefulSet", steady: true, template: withInit(template(nil, webContainer(tcpProbe(), nil)))}},
		{6, workload{name: "job-never", kind: "Job", template: restart(v1.RestartPolicyNever, template([]string{"main=0"},
			box("main", "sleep $(cat /lifetime/text); exit 0", nil, nil)))}},
		{6, workload{name: "job-again", kind: "Job", template: withSidecar(restart(v1.RestartPolicyOnFailure, template([]string{"main=0", "main=7"},
			box("main", "if ! test -e /state/again; then touch /state/again; sleep 5; exit 7; fi; sleep $(cat /lifetime/text); exit 0", nil, nil))))}},
		{8, workload{name: "always", kind: "Pod", steady: true, template: template(nil, webContainer(httpProbe("/readyz"), httpProbe("/healthz")))}},
		{6, workload{name: "box", kind: "Pod", steady: true, template: withInit(template(nil, box("main", untilTold, execProbe("test -e /tmp/up"), nil)))}},
		{4, workload{name: "crash", kind: "Pod", template: template([]string{"main=5"}, box("main", "sleep 20; exit 5", nil, nil), box("other", untilTold, nil, nil))}},
		{6, workload{name: "once", kind: "Pod", template: restart(v1.RestartPolicyNever, template([]string{"main=0"}, box("main", "sleep $(cat /lifetime/text); exit 0", nil, nil)))}},
		{6, workload{name: "again", kind: "Pod", template: restart(v1.RestartPolicyOnFailure, template([]string{"main=0", "main=7"},
			box("main", "if ! test -e /state/again; then touch /state/again; sleep 5; exit 7; fi; sleep $(cat /lifetime/text); exit 0", nil, nil)))}},
	}
	var list []workload
	left := n
	for i, p := range parts {
		p.w.replicas = max(1, p.share*n/110)
		if i == 0 {
			continue
		}
		left -= p.w.replicas
		p.w.template.Labels = map[string]string{labelKind: p.w.name}
		list = append(list, p.w)
	}
	first := parts[0].w
	first.replicas = max(1, left)
	first.template.Labels = map[string]string{labelKind: first.name}
	return append([]workload{first}, list...)
}

// untilTold runs until SIGTERM, and then exits with 0.
const untilTold = `trap "exit 0" TERM
touch /tmp/up
sleep inf & wait`

func template(ends []string, containers ...v1.Container) v1.PodTemplateSpec {
	return v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotationEnds: strings.Join(ends, " ")}},
		Spec: v1.PodSpec{
			Containers: containers, TerminationGracePeriodSeconds: ptr.To(int64(10)), RestartPolicy: v1.RestartPolicyAlways,
			AutomountServiceAccountToken: ptr.To(false),
			Volumes: []v1.Volume{
				{Name: "lifetime", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: configMap}}}},
				{Name: "state", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
				{Name: "tmp", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			},
		},
	}
}

func restart(policy v1.RestartPolicy, t v1.PodTemplateSpec) v1.PodTemplateSpec {
	t.Spec.RestartPolicy = policy
	return t
}

func mounts() []v1.VolumeMount {
	return []v1.VolumeMount{{Name: "lifetime", MountPath: "/lifetime"}, {Name: "state", MountPath: "/state"}}
}

func webContainer(readiness, liveness *v1.Probe) v1.Container {
	return v1.Container{Name: "web", Image: web, ReadinessProbe: readiness, LivenessProbe: liveness, VolumeMounts: mounts()}
}

func box(name, script string, readiness, liveness *v1.Probe) v1.Container {
	return v1.Container{Name: name, Image: toolbox, Command: []string{"sh", "-c", script}, ReadinessProbe: readiness, LivenessProbe: liveness,
		VolumeMounts: append(mounts(), v1.VolumeMount{Name: "tmp", MountPath: "/tmp"})}
}

func withInit(t v1.PodTemplateSpec) v1.PodTemplateSpec {
	t.Spec.InitContainers = append(t.Spec.InitContainers, box("init", "cat /lifetime/text >/state/read; exit 0", nil, nil))
	return t
}

func withSidecar(t v1.PodTemplateSpec) v1.PodTemplateSpec {
	c := box("sidecar", untilTold, nil, nil)
	c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	t.Spec.InitContainers = append(t.Spec.InitContainers, c)
	return t
}

// probe has a long timeout, because failures on a busy machine are not the subject of the test.
func probe(h v1.ProbeHandler, period int32) *v1.Probe {
	return &v1.Probe{ProbeHandler: h, PeriodSeconds: period, TimeoutSeconds: 20, FailureThreshold: 3}
}

func httpProbe(path string) *v1.Probe {
	return probe(v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: path, Port: intstr.FromInt32(8080)}}, 4)
}

func tcpProbe() *v1.Probe {
	return probe(v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(8080)}}, 4)
}

func execProbe(script string) *v1.Probe {
	return probe(v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"sh", "-c", script}}}, 15)
}

// begin makes a workload.
func (s *storm) begin(ctx context.Context, w workload) error {
	meta := metav1.ObjectMeta{Name: w.name}
	selector := &metav1.LabelSelector{MatchLabels: w.template.Labels}
	replicas := ptr.To(int32(w.replicas))
	var err error
	switch w.kind {
	case "Deployment":
		_, err = s.lab.Client.AppsV1().Deployments(s.namespace).Create(ctx, &appsv1.Deployment{ObjectMeta: meta,
			Spec: appsv1.DeploymentSpec{Replicas: replicas, Selector: selector, Template: w.template}}, metav1.CreateOptions{})
	case "StatefulSet":
		policy := appsv1.ParallelPodManagement
		if w.name == "ordered" {
			policy = appsv1.OrderedReadyPodManagement
		}
		_, err = s.lab.Client.AppsV1().StatefulSets(s.namespace).Create(ctx, &appsv1.StatefulSet{ObjectMeta: meta,
			Spec: appsv1.StatefulSetSpec{Replicas: replicas, Selector: selector, Template: w.template, PodManagementPolicy: policy}}, metav1.CreateOptions{})
	case "Job":
		err = s.beginJob(ctx, w)
	case "Pod":
		for i := range w.replicas {
			if err = s.beginPod(ctx, w, i); err != nil {
				break
			}
		}
	}
	return err
}

func (s *storm) beginJob(ctx context.Context, w workload) error {
	// The Job ends after this many successes, and keep then replaces it.
	_, err := s.lab.Client.BatchV1().Jobs(s.namespace).Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{GenerateName: w.name + "-", Labels: w.template.Labels},
		Spec: batchv1.JobSpec{Parallelism: ptr.To(int32(w.replicas)), Completions: ptr.To(int32(2 * w.replicas)),
			BackoffLimit: ptr.To(int32(10000)), Template: w.template},
	}, metav1.CreateOptions{})
	return err
}

func (s *storm) beginPod(ctx context.Context, w workload, i int) error {
	_, err := s.lab.Client.CoreV1().Pods(s.namespace).Create(ctx, &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: w.name + "-" + strconv.Itoa(i), Labels: w.template.Labels, Annotations: w.template.Annotations},
		Spec:       w.template.Spec}, metav1.CreateOptions{})
	return err
}

// keep does for bare pods and Jobs what controllers do for the others: it makes missing ones, and,
// if replace is set, replaces finished ones.
func (s *storm) keep(ctx context.Context, replace bool) error {
	there := map[string]*v1.Pod{}
	for _, p := range s.history.Now() {
		there[p.Name] = p
	}
	jobs, err := s.lab.Client.BatchV1().Jobs(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, w := range s.workloads {
		switch w.kind {
		case "Pod":
			for i := range w.replicas {
				name := w.name + "-" + strconv.Itoa(i)
				p := there[name]
				switch {
				case p == nil && time.Since(s.made[name]) > 5*time.Second: // a pod just made may not have been seen yet
					s.made[name] = time.Now()
					if err := s.beginPod(ctx, w, i); err != nil {
						return err
					}
				case p != nil && replace && done(p) && p.DeletionTimestamp == nil:
					if err := s.delete(ctx, p, nil); err != nil {
						return err
					}
				}
			}
		case "Job":
			open := false
			for i := range jobs.Items {
				j := &jobs.Items[i]
				if j.Labels[labelKind] != w.name || j.DeletionTimestamp != nil {
					continue
				}
				if j.Status.CompletionTime == nil || !replace {
					open = true
					continue
				}
				if err := s.lab.Client.BatchV1().Jobs(s.namespace).Delete(ctx, j.Name, metav1.DeleteOptions{
					PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil {
					return err
				}
			}
			if !open && replace {
				if err := s.beginJob(ctx, w); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func done(p *v1.Pod) bool {
	return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
}

// desired returns an error that says what differs from the desired state.
func (s *storm) desired(ctx context.Context) error {
	pods, err := s.lab.Client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	have, open := map[string]int{}, map[string]string{}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.DeletionTimestamp != nil {
			return fmt.Errorf("%s still ends", labtest.Describe(p))
		}
		kind := p.Labels[labelKind]
		if done(p) {
			have[kind+", done"]++
			continue
		}
		have[kind]++
		if !labtest.IsReady(p) {
			open[kind] = labtest.Describe(p)
		}
	}
	for _, w := range s.workloads {
		switch {
		case w.kind == "Job":
		case w.steady && (have[w.name] != w.replicas || open[w.name] != ""):
			return fmt.Errorf("%d of %d pods of %s are there; %s", have[w.name], w.replicas, w.name, open[w.name])
		case have[w.name]+have[w.name+", done"] != w.replicas:
			return fmt.Errorf("%d pods of %s run and %d are done, want %d in all", have[w.name], w.name, have[w.name+", done"], w.replicas)
		}
	}
	jobs, err := s.lab.Client.BatchV1().Jobs(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, j := range jobs.Items {
		if j.Status.CompletionTime == nil {
			return fmt.Errorf("job %s: %d of %d have succeeded, %d run", j.Name, j.Status.Succeeded, *j.Spec.Completions, j.Status.Active)
		}
	}
	return nil
}

func TestWorkloads(t *testing.T) {
	for _, n := range []int{20, 50, 110} {
		sum := 0
		for _, w := range workloads(n) {
			sum += w.replicas
		}
		if sum != n {
			t.Errorf("%d pods instead of %d", sum, n)
		}
	}
}
