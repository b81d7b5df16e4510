package hostadmin

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) metav1.Time { return metav1.NewTime(noon.Add(-d)) }

// shown is a cluster with a healthy Host, one that was never managed, one whose link is down, one
// of a configuration file, and a node that is not Bowline's.
func shown() (*fakeHosts, *fake.Clientset) {
	f := &fakeHosts{byName: map[string]*v1alpha1.Host{}}
	host := func(name string, age time.Duration) *v1alpha1.Host {
		h := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: before(age)}}
		h.Spec.Endpoint = "ssh://root@10.0.0.7/run/containerd/containerd.sock"
		f.byName[name] = h
		return h
	}
	managed := func(h *v1alpha1.Host, pods int32) {
		h.Status.NodeName, h.Status.Pods = nodeName(h), &pods
	}
	well := host("box-1", 76*time.Hour)
	well.Spec.NodeName = "gpu-1"
	managed(well, 2)
	link(well, true)
	say(well, metav1.ConditionTrue, hosts.ReasonNodeReady, "")
	cut := host("box-2", 10*time.Minute)
	managed(cut, 1)
	link(cut, false)
	say(cut, metav1.ConditionTrue, hosts.ReasonLinkGrace, "")
	host("box-3", time.Second)

	node := func(name, host, driver string, ready, up v1.ConditionStatus) *v1.Node {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: before(time.Hour), Annotations: map[string]string{}}}
		if driver != "" {
			n.Annotations[annotationDriver] = driver
		}
		if host != "" {
			n.Annotations[v1alpha1.HostAnnotation] = host
		}
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: ready, Reason: "KubeletNotReady"}}
		if up != "" {
			n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: "LinkUp", Status: up})
		}
		n.Status.NodeInfo.ContainerRuntimeVersion = "containerd://2.1.4"
		return n
	}
	pod := func(namespace, name, node string, change func(*v1.Pod)) *v1.Pod {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: before(30 * time.Minute)}}
		p.Spec.NodeName, p.Spec.Containers = node, []v1.Container{{Name: "main"}}
		p.Status.Phase, p.Status.PodIP = v1.PodRunning, "10.66.1.3"
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
		p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "main", Ready: true}}
		change(p)
		return p
	}
	well1 := func(*v1.Pod) {}
	return f, fake.NewClientset(
		node("gpu-1", "box-1", "bowline", v1.ConditionTrue, v1.ConditionTrue),
		node("box-2", "box-2", "bowline", v1.ConditionTrue, v1.ConditionFalse),
		node("file-1", "", "bowline", v1.ConditionFalse, v1.ConditionFalse),
		node("worker", "", "", v1.ConditionTrue, ""),
		pod("default", "web-0", "gpu-1", well1),
		pod("default", "crashes", "gpu-1", func(p *v1.Pod) {
			s := &p.Status.ContainerStatuses[0]
			s.Ready, s.RestartCount = false, 4
			s.State.Waiting = &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
			s.LastTerminationState.Terminated = &v1.ContainerStateTerminated{FinishedAt: before(90 * time.Second)}
			p.Status.Conditions[0].Status = v1.ConditionFalse
		}),
		pod("jobs", "done", "gpu-1", func(p *v1.Pod) {
			p.Status.Phase, p.Status.PodIP, p.Status.Conditions = v1.PodSucceeded, "", nil
			p.Status.ContainerStatuses[0].Ready = false
		}),
		pod("default", "goes", "box-2", func(p *v1.Pod) { d := before(0); p.DeletionTimestamp, p.Finalizers = &d, []string{"x"} }),
		pod("default", "rejected", "box-2", func(p *v1.Pod) {
			p.Status = v1.PodStatus{Phase: v1.PodFailed, Reason: "HostPolicy"}
		}),
		pod("default", "elsewhere", "worker", well1),
	)
}

func TestTables(t *testing.T) {
	f, client := shown()
	f.w = &world{t: t}
	list, err := f.List(t.Context(), metav1.ListOptions{})
	testutil.Must(t, err)
	golden(t, "list.txt", HostTable(list, noon, false))
	golden(t, "list-wide.txt", HostTable(list, noon, true))
	v, err := Look(t.Context(), f, client)
	testutil.Must(t, err)
	// The fake client ignores field selectors: each list has the pods of all nodes.
	own := map[string]v1.Pod{}
	for _, p := range v.Pods {
		if p.Spec.NodeName != "worker" {
			own[p.Namespace+"/"+p.Name] = p
		}
	}
	v.Pods = nil
	for _, name := range []string{"default/crashes", "default/goes", "default/rejected", "default/web-0", "jobs/done"} {
		v.Pods = append(v.Pods, own[name])
	}
	golden(t, "top.txt", v.Text(noon))

	if got := HostTable(&v1alpha1.HostList{}, noon, true); got != "No hosts found.\n" {
		t.Errorf("of none: %q", got)
	}
	if got := (&View{}).Text(noon); got != "No hosts found.\n" {
		t.Errorf("of nothing: %q", got)
	}
}

// FuzzTables: what machines and containers report stays in its cell.
func FuzzTables(f *testing.F) {
	for _, s := range []string{"\x1b[2J", "a\nworker   True", "a\tb", "\u202e"} {
		f.Add(s)
	}
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		h := v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "box-1"}}
		h.Spec.Endpoint, h.Status.NodeName = s, s
		h.Status.Runtime = &v1alpha1.RuntimeStatus{Name: s, Version: s}
		h.Status.Link = &v1alpha1.LinkStatus{State: v1alpha1.LinkState(s), RoundTrip: s}
		say(&h, metav1.ConditionStatus(s), s, s)
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "box-1"}}
		n.Status.NodeInfo.ContainerRuntimeVersion = s
		p := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0"}}
		p.Spec.NodeName, p.Status.Reason, p.Status.PodIP = "box-1", s, s
		p.Status.ContainerStatuses = []v1.ContainerStatus{{State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: s}}}}
		v := &View{Hosts: []HostView{{Name: "box-1", Host: &h, Node: n}}, Pods: []v1.Pod{p}}
		for text, lines := range map[string]int{HostTable(&v1alpha1.HostList{Items: []v1alpha1.Host{h}}, noon, true): 2, v.Text(noon): 5} {
			if strings.Count(text, "\n") != lines || strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) >= 0 {
				t.Errorf("%q: %q", s, text)
			}
		}
	})
}

func TestClip(t *testing.T) {
	text := "one\ntwo\nthree\nfour\n"
	for _, c := range []struct {
		rows, columns int
		want          string
	}{
		{0, 0, "one\ntwo\nthree\nfour"}, {4, 80, "one\ntwo\nthree\nfour"}, {3, 80, "one\ntwo\n… 2 more lines"}, {9, 4, "one\ntwo\nthr…\nfour"},
	} {
		var b strings.Builder
		testutil.Must(t, Clip(&b, text, c.rows, c.columns))
		if b.String() != c.want {
			t.Errorf("%d×%d: %q, not %q", c.rows, c.columns, b.String(), c.want)
		}
	}
}

func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"k=v:NoSchedule": "k=v:NoSchedule", "k:NoExecute": "k:NoExecute", "a.b/k=v:PreferNoSchedule": "a.b/k=v:PreferNoSchedule",
		"k": "KEY:EFFECT", ":NoSchedule": "KEY:EFFECT", "k=v:Never": "the effect is", "k =v:NoSchedule": `"k =v:NoSchedule"`,
	} {
		taint, err := ParseTaint(in)
		if got := taint.ToString(); err == nil && got != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	if l, err := ParseLabels([]string{"a=b", "c="}); err != nil || fmt.Sprint(l) != "map[a:b c:]" {
		t.Errorf("%v, %v", l, err)
	}
	for _, bad := range [][]string{{"a"}, {"=b"}, {"a=b", "a=c"}} {
		if _, err := ParseLabels(bad); err == nil {
			t.Errorf("%v is taken", bad)
		}
	}
}

// FuzzEndpoint: any input is refused, or normalized; normalizing it again does not change it.
func FuzzEndpoint(f *testing.F) {
	for _, s := range []string{"root@10.0.0.7", "root@Box.example:22", "a@[fd00::7]:2222", "root:x@y", "@", "a@b@c", "root@h:0"} {
		f.Add(s)
	}
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, login string) {
		r := request()
		r.Login = login
		u, err := r.endpoint()
		if err != nil {
			if user, _, ok := strings.Cut(login, "@"); ok {
				if _, password, ok := strings.Cut(user, ":"); ok && len(password) > 8 && strings.Contains(err.Error(), password) {
					t.Errorf("%q: the error repeats a password: %v", login, err)
				}
			}
			return
		}
		r.Login = strings.TrimSuffix(strings.TrimPrefix(u.String(), "ssh://"), r.Socket)
		again, err := r.endpoint()
		if err != nil || again != u || u.Port == 22 {
			t.Errorf("%q is %q, and that is %q (%v)", login, u, again, err)
		}
	})
}
