package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// staticPods holds the manifests of the node's static pods: a directory on the host, and a URL.
// Both are empty except in TestStaticPods.
type staticPods struct {
	dir    string // seen from outside the host
	server *http.Server
	url    string

	mu   sync.Mutex
	body string // at the URL
}

// serve makes the directory, and serves the URL at the address of the lab's API server.
func (s *staticPods) serve(l *labtest.Lab) error {
	s.dir = filepath.Join(l.Host(host).Root, "var/lib/kubelet/manifests")
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	api, err := url.Parse(l.Status.Cluster.APIURL)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(api.Hostname(), "0"))
	if err != nil {
		return err
	}
	s.url = "http://" + listener.Addr().String() + "/pods.yaml"
	s.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.Header.Get("X-Lab") != "e2e" {
			http.Error(w, "the header is missing", http.StatusForbidden)
			return
		}
		fmt.Fprint(w, s.body)
	})}
	go func() { _ = s.server.Serve(listener) }()
	return nil
}

func (s *staticPods) port() string {
	return s.url[strings.LastIndexByte(s.url, ':')+1 : strings.LastIndexByte(s.url, '/')]
}

// lines are lines of the host's configuration. Bowline polls a remote host each second; it must
// notice changes on a local one without polling.
func (s *staticPods) lines() []string {
	lines := []string{"staticPodPath: /var/lib/kubelet/manifests", "staticPodURL: " + s.url,
		"staticPodURLHeader: {X-Lab: [e2e]}", "httpCheckFrequency: 1s"}
	if remote {
		lines = append(lines, "fileCheckFrequency: 1s")
	}
	return lines
}

func (s *staticPods) publish(body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.body = body
}

// put writes a manifest as an editor does. $NS, $TOOLBOX and $WEB are replaced as in manifest.
func (s *staticPods) put(t *testing.T, ns, file, text string) {
	t.Helper()
	testutil.Must(t, os.WriteFile(filepath.Join(s.dir, "."+file), []byte(expand(ns, text)), 0o644))
	testutil.Must(t, os.Rename(filepath.Join(s.dir, "."+file), filepath.Join(s.dir, file)))
}

func expand(ns, text string) string {
	return strings.NewReplacer("$NS", ns, "$TOOLBOX", toolbox, "$WEB", webV1).Replace(text)
}

// Static pods from a directory and a URL: mirror pods show them, and serve logs and exec; a broken
// manifest beside them; a mirror pod deleted by hand; a restart of Bowline; an edited one, which
// ends before it starts again; and removal.
func TestStaticPods(t *testing.T) {
	serial(t)
	ns := namespace(t)
	dir := hostDir(t)
	t.Cleanup(func() {
		static.publish("")
		for _, file := range []string{"web.yaml", "slow.yaml", "bad.yaml"} {
			_ = os.Remove(filepath.Join(static.dir, file)) // removed already unless the test failed
		}
	})
	static.put(t, ns, "bad.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: bad, namespace: $NS}\nspec: {containers: [{name: c\n")
	static.put(t, ns, "web.yaml", `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: $NS, labels: {app: web}}
spec:
  containers:
  - name: main
    image: $WEB
    readinessProbe: {httpGet: {path: /readyz, port: 8080}, initialDelaySeconds: 2}
    livenessProbe: {tcpSocket: {port: 8080}}
    startupProbe: {httpGet: {port: 8080, path: /readyz}, periodSeconds: 1}
    ports: [{containerPort: 8080, name: web}]
    env: [{name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    resources: {limits: {cpu: 500m, memory: 64Mi}, requests: {cpu: 10m}}
    volumeMounts: [{name: info, mountPath: /info}, {name: all, mountPath: /all}, {name: none, mountPath: /none}]
  initContainers: [{name: init, image: $TOOLBOX, command: [sh, -c, "true"]}]
  volumes:
  - {name: none}
  - {name: info, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
  - {name: all, projected: {sources: [{downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]}}
`)
	slow := func(version string) string {
		return `
apiVersion: v1
kind: Pod
metadata: {name: slow, namespace: $NS}
spec:
  terminationGracePeriodSeconds: 10
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "trap 'append /d/log end-` + version + `; sleep 1; append /d/log down-` + version + `; exit 0' TERM; append /d/log up-` + version + `; echo ` + version + `; sleep inf & wait"]
    volumeMounts: [{name: d, mountPath: /d}]
  volumes: [{name: d, hostPath: {path: ` + dir + `}}]
`
	}
	static.put(t, ns, "slow.yaml", slow("one"))
	static.publish(expand(ns, `{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "served", "namespace": "$NS"},
		"spec": {"containers": [{"name": "main", "image": "$TOOLBOX", "command": ["sleep", "inf"]}]}}]}`))
	web, one, served := ready(t, ns, "web-"+host), ready(t, ns, "slow-"+host), ready(t, ns, "served-"+host)
	for _, p := range []*v1.Pod{web, one, served} {
		owner := metav1.GetControllerOf(p)
		if !pod.IsMirror(p) || p.Annotations[pod.AnnotationMirror] != p.Annotations[pod.AnnotationConfigHash] || owner == nil || owner.Kind != "Node" {
			t.Errorf("%s is no mirror pod: %v %v", p.Name, p.Annotations, owner)
		}
	}
	if served.Annotations[pod.AnnotationSource] != pod.SourceHTTP || web.Annotations[pod.AnnotationSource] != pod.SourceFile {
		t.Errorf("sources: %s, %s", served.Annotations[pod.AnnotationSource], web.Annotations[pod.AnnotationSource])
	}
	equal(t, "the log through the mirror pod", strings.TrimSpace(logs(t, ns, one.Name)), "one")
	equal(t, "what exec through the mirror pod prints", inPod(t, ns, one.Name, "echo inside"), "inside")
	explained(t, ns, web.Name, func(r *pod.WhyReport) bool {
		return r.UID == web.Annotations[pod.AnnotationMirror] && r.Phase == "Syncing"
	}, "Syncing")
	complete(t, web)
	findEvent(t, lab, "default", "involvedObject.kind=Node,reason=InvalidStaticPod", "/manifests/bad.yaml")

	// A mirror pod deleted by hand comes back, and the static pod is not affected.
	kubectl(t, "delete", "pod", "-n", ns, web.Name, "--wait=false")
	again := mirror(t, ns, web.Name, func(p *v1.Pod) bool { return p.UID != web.UID })
	web.UID = again.UID
	same(t, web, again)

	// A restart of Bowline adopts all of it.
	history := lab.Watch(ns)
	defer history.Stop()
	bowline.Kill()
	startBowline(t)
	static.put(t, ns, "slow.yaml", slow("two"))
	two := mirror(t, ns, one.Name, func(p *v1.Pod) bool {
		return p.Annotations[pod.AnnotationMirror] != one.Annotations[pod.AnnotationMirror]
	})
	same(t, web, ready(t, ns, web.Name))
	same(t, served, ready(t, ns, served.Name))
	for _, was := range []*v1.Pod{web, served} {
		for _, p := range history.Of(was.UID) {
			if !labtest.IsReady(p) {
				t.Errorf("%s was reported not Ready at version %s", p.Name, p.ResourceVersion)
			}
		}
	}
	read := func() string {
		data := testutil.ReadFile(t, filepath.Join(dir, "log"))
		return strings.Join(strings.Fields(string(data)), " ")
	}
	// The old version ended first. A pod is Ready before its shell has written a line.
	until(t, "the edited pod starts after the first has ended", func(context.Context) error {
		if got := read(); got != "up-one end-one down-one up-two" {
			return fmt.Errorf("starts and ends: %q", got)
		}
		return nil
	})

	// Removed and put back unchanged while it ends: it ends completely and starts again.
	testutil.Must(t, os.Remove(filepath.Join(static.dir, "slow.yaml")))
	until(t, "the removed pod ends", func(context.Context) error {
		if got := read(); !strings.HasSuffix(got, "end-two") && !strings.HasSuffix(got, "down-two") {
			return fmt.Errorf("starts and ends: %q", got)
		}
		return nil
	})
	static.put(t, ns, "slow.yaml", slow("two"))
	back := mirror(t, ns, two.Name, func(p *v1.Pod) bool { return p.UID != two.UID })
	equal(t, "restarts of what came back", back.Status.ContainerStatuses[0].RestartCount, 1)
	until(t, "the pod that was put back starts once", func(context.Context) error {
		if got := read(); got != "up-one end-one down-one up-two end-two down-two up-two" {
			return fmt.Errorf("starts and ends: %q", got)
		}
		return nil
	})

	// Once removed, the pods end, and their mirror pods go.
	for _, file := range []string{"web.yaml", "slow.yaml", "bad.yaml"} {
		testutil.Must(t, os.Remove(filepath.Join(static.dir, file)))
	}
	static.publish("")
	for _, name := range []string{web.Name, two.Name, served.Name} {
		testutil.Must(t, lab.PodGone(t.Context(), ns, name, patience))
	}
	if got := read(); !strings.HasSuffix(got, "up-two end-two down-two") {
		t.Errorf("starts and ends: %q", got)
	}
	until(t, "the runtime has nothing of them", func(context.Context) error {
		if sandboxes, containers := ofNamespace(t, ns); len(sandboxes)+len(containers) > 0 {
			return fmt.Errorf("sandboxes %v, containers %v", sandboxes, containers)
		}
		return nil
	})
}

// complete compares the pod that the node runs with its mirror pod, to which the API server has
// applied its defaults: the node must have applied the same ones.
func complete(t *testing.T, mirror *v1.Pod) {
	t.Helper()
	data, err := lab.Client.CoreV1().RESTClient().Get().Resource("nodes").Name(host).SubResource("proxy").Suffix("pods").Do(t.Context()).Raw()
	testutil.Must(t, err)
	var list v1.PodList
	testutil.Must(t, json.Unmarshal(data, &list))
	for i := range list.Items {
		p := &list.Items[i]
		if p.Namespace != mirror.Namespace || p.Name != mirror.Name {
			continue
		}
		if string(p.UID) != mirror.Annotations[pod.AnnotationMirror] || pod.IsMirror(p) {
			t.Errorf("the node's pod is %s %v", p.UID, p.Annotations)
		}
		filled := mirror.Spec.DeepCopy()
		filled.Priority, filled.PreemptionPolicy = p.Spec.Priority, p.Spec.PreemptionPolicy // set by admission
		if diff := cmp.Diff(&p.Spec, filled); diff != "" {
			t.Errorf("the API server has filled in what the node has not:\n%s", diff)
		}
		return
	}
	t.Errorf("the node does not list pod %s", mirror.Name)
}

// mirror waits until a mirror pod is Ready and satisfies is.
func mirror(t *testing.T, ns, name string, is func(*v1.Pod) bool) *v1.Pod {
	t.Helper()
	return podIs(t, ns, name, 2*time.Minute, "the mirror pod that is ready", func(p *v1.Pod) error {
		if !is(p) || !labtest.IsReady(p) {
			return fmt.Errorf("it is %s, ready %v", p.UID, labtest.IsReady(p))
		}
		return nil
	})
}
