package manifest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/test/corpus"
)

var file = Origin{Source: pod.SourceFile, Path: "/etc/kubernetes/manifests/web.yaml", NodeName: "Node-1"}

const head = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n"

func decode(t *testing.T, text string, from Origin) *v1.Pod {
	t.Helper()
	pods, _, err := Decode([]byte(text), from)
	testutil.Must(t, err)
	return pods[0]
}

// A minimal manifest gets every default.
func TestLeast(t *testing.T) {
	p := decode(t, head+"spec: {containers: [{name: c, image: a}]}", file)
	yes, grace := true, int64(30)
	want := &v1.Pod{Spec: v1.PodSpec{
		NodeName: "Node-1", RestartPolicy: v1.RestartPolicyAlways, DNSPolicy: v1.DNSClusterFirst, SchedulerName: "default-scheduler",
		EnableServiceLinks: &yes, TerminationGracePeriodSeconds: &grace, SecurityContext: &v1.PodSecurityContext{},
		Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}},
		Containers: []v1.Container{{Name: "c", Image: "a", ImagePullPolicy: v1.PullAlways,
			TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: v1.TerminationMessageReadFile}},
	}, Status: v1.PodStatus{Phase: v1.PodPending}}
	want.APIVersion, want.Kind, want.Name, want.Namespace, want.UID = "v1", "Pod", "web-node-1", "default", p.UID
	want.Annotations = map[string]string{pod.AnnotationSource: "file", pod.AnnotationConfigHash: string(p.UID),
		pod.AnnotationManifest: file.Path}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Error(diff)
	}
	if len(p.UID) != 32 || !pod.IsStatic(p) || pod.IsMirror(p) {
		t.Errorf("UID %q, %v", p.UID, p.Annotations)
	}
}

func TestDefaults(t *testing.T) {
	p := decode(t, head+`
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: -5
  resources: {limits: {cpu: 2, memory: 1Gi}}
  containers:
  - name: c
    image: registry:5000/a/b:v1@sha256:0000
    ports: [{containerPort: 80}]
    env: [{name: N, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    resources: {limits: {cpu: 1, memory: 64Mi}, requests: {cpu: 100m}}
    livenessProbe: {httpGet: {port: 80}}
    readinessProbe: {grpc: {port: 80}, periodSeconds: 3}
    lifecycle: {preStop: {httpGet: {port: 80}}}
  initContainers: [{name: i, image: "registry:5000/a", resources: {limits: {cpu: 1}}}]
  volumes:
  - {name: empty}
  - {name: host, hostPath: {path: /srv}}
  - {name: down, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
  - {name: all, projected: {sources: [{downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]}}
  - {name: img, image: {reference: a:latest}}
`, file)
	c, s := p.Spec.Containers[0], p.Spec
	for what, is := range map[string]bool{
		"a digest needs no pull":                   c.ImagePullPolicy == v1.PullIfNotPresent,
		"a registry's port is no tag":              s.InitContainers[0].ImagePullPolicy == v1.PullAlways,
		"the port's protocol":                      c.Ports[0].Protocol == v1.ProtocolTCP,
		"the host network's hostPort":              c.Ports[0].HostPort == 80,
		"a field's version":                        c.Env[0].ValueFrom.FieldRef.APIVersion == "v1",
		"a request that was said":                  c.Resources.Requests.Cpu().MilliValue() == 100,
		"a request of the limit":                   c.Resources.Requests.Memory().Equal(resource.MustParse("64Mi")),
		"the init container's request":             s.InitContainers[0].Resources.Requests.Cpu().Equal(resource.MustParse("1")),
		"the pod's request is its containers'":     s.Resources.Requests.Memory().Equal(resource.MustParse("64Mi")),
		"a probe's times":                          c.LivenessProbe.TimeoutSeconds == 1 && c.LivenessProbe.PeriodSeconds == 10,
		"a probe's thresholds":                     c.LivenessProbe.SuccessThreshold == 1 && c.LivenessProbe.FailureThreshold == 3,
		"a period that was said":                   c.ReadinessProbe.PeriodSeconds == 3,
		"a probe's URL":                            c.LivenessProbe.HTTPGet.Path == "/" && c.LivenessProbe.HTTPGet.Scheme == "HTTP",
		"the service of a gRPC probe":              *c.ReadinessProbe.GRPC.Service == "",
		"a hook's URL":                             c.Lifecycle.PreStop.HTTPGet.Path == "/" && c.Lifecycle.PreStop.HTTPGet.Scheme == "HTTP",
		"no source is an emptyDir":                 s.Volumes[0].EmptyDir != nil,
		"a hostPath's type":                        *s.Volumes[1].HostPath.Type == "",
		"a downwardAPI volume's mode":              *s.Volumes[2].DownwardAPI.DefaultMode == 0o644 && s.Volumes[2].DownwardAPI.Items[0].FieldRef.APIVersion == "v1",
		"a projected volume's mode":                *s.Volumes[3].Projected.DefaultMode == 0o644,
		"a projected field's version":              s.Volumes[3].Projected.Sources[0].DownwardAPI.Items[0].FieldRef.APIVersion == "v1",
		"an image volume's pull policy":            s.Volumes[4].Image.PullPolicy == v1.PullAlways,
		"a grace of less than nothing is a second": *s.TerminationGracePeriodSeconds == 1,
	} {
		if !is {
			t.Errorf("wrong: %s", what)
		}
	}
}

// The UID depends on the content and the origin: fields that a server wrote, comments and order do
// not change it, everything else does.
func TestUID(t *testing.T) {
	text := head + "spec: {containers: [{name: c, image: a}]}"
	one := decode(t, text, file)
	for _, same := range []string{
		"# a comment\n" + text,
		"---\n" + text,
		`{"kind": "Pod", "spec": {"containers": [{"image": "a", "name": "c"}]}, "metadata": {"name": "web"}, "apiVersion": "v1"}`,
		"apiVersion: v1\nkind: Pod\nmetadata: {name: web, resourceVersion: '7', creationTimestamp: '2020-01-01T00:00:00Z', deletionTimestamp: '2020-01-01T00:00:00Z', generation: 3, finalizers: [x/y], ownerReferences: [{apiVersion: v1, kind: Node, name: n, uid: u}]}\nspec: {containers: [{name: c, image: a}]}\nstatus: {phase: Failed}",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: web, annotations: {kubernetes.io/config.mirror: h, kubernetes.io/config.hash: h, kubernetes.io/config.seen: s, kubernetes.io/config.source: api, bowline.io/manifest: m}}\nspec: {containers: [{name: c, image: a}]}",
	} {
		p := decode(t, same, file)
		p.Annotations[pod.AnnotationConfigHash] = one.Annotations[pod.AnnotationConfigHash]
		if p.DeletionTimestamp != nil || len(p.Finalizers)+len(p.OwnerReferences) > 0 || pod.IsMirror(p) || p.Status.Phase != v1.PodPending {
			t.Errorf("%s\nkeeps what a server wrote: %+v", same, p.ObjectMeta)
		}
		if strings.Contains(same, "annotations") {
			continue // an empty map counts as content
		}
		if p.UID != one.UID {
			t.Errorf("another UID for\n%s", same)
		}
	}
	uids := map[string]string{string(one.UID): "the first"}
	for what, p := range map[string]*v1.Pod{
		"another image": decode(t, head+"spec: {containers: [{name: c, image: b}]}", file),
		"another file":  decode(t, text, Origin{pod.SourceFile, "/other", "Node-1"}),
		"another node":  decode(t, text, Origin{pod.SourceFile, file.Path, "Node-2"}),
		"a URL":         decode(t, text, Origin{pod.SourceHTTP, file.Path, "Node-1"}),
		"a label":       decode(t, strings.Replace(text, "{name: web}", "{name: web, labels: {a: b}}", 1), file),
	} {
		if other := uids[string(p.UID)]; other != "" {
			t.Errorf("%s has the UID of %s", what, other)
		}
		uids[string(p.UID)] = what
	}
	if p := decode(t, strings.Replace(text, "{name: web}", "{name: web, uid: mine}", 1), file); p.UID != "mine" || p.Annotations[pod.AnnotationConfigHash] != "mine" {
		t.Errorf("a UID that was said is %q", p.UID)
	}
}

func TestOrigins(t *testing.T) {
	url := Origin{Source: pod.SourceHTTP, Path: "http://h/p", NodeName: "n"}
	pods, _, err := Decode([]byte(`{"apiVersion": "v1", "kind": "PodList", "items": [
		{"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
		{"metadata": {"name": "b", "namespace": "x"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}]}`), url)
	if err != nil || len(pods) != 2 || pods[0].Name != "a-n" || pods[1].Namespace != "x" {
		t.Fatalf("%v, %v", pods, err)
	}
	if p := pods[0]; len(p.Spec.Tolerations) != 0 || p.Annotations[pod.AnnotationSource] != "http" || p.Annotations[pod.AnnotationManifest] != "" {
		t.Errorf("of a URL: %v %v", p.Spec.Tolerations, p.Annotations)
	}
	_, warnings, err := Decode([]byte(head+"spec: {containers: [{name: c, image: a, imagePolicy: b}]}\n---\n"+head), file)
	if err != nil || len(warnings) != 2 || !strings.Contains(warnings[0], "first document") || !strings.Contains(warnings[1], "imagePolicy") {
		t.Errorf("%q, %v", warnings, err)
	}
}

// An unusable manifest is refused as a whole, and the error names the field and the reason.
func TestRefused(t *testing.T) {
	spec := func(s string) string { return head + "spec: {containers: [{name: c, image: a}], " + s + "}" }
	container := func(s string) string {
		return head + "spec: {containers: [{name: c, image: a, " + s + "}], volumes: [{name: v}]}"
	}
	volume := func(s string) string { return spec("volumes: [{name: v, " + s + "}]") }
	for _, c := range [][2]string{
		{"", "no apiVersion and kind"},
		{"kind: [", "not YAML"},
		{"just words", "not YAML or JSON of an object"},
		{"apiVersion: v2\nkind: Pod", `apiVersion is "v2"`},
		{"apiVersion: v1\nkind: Node", `kind is "Node"`},
		{"apiVersion: v1\nkind: PodList\nitems: []", `kind is "PodList"`},
		{head + "spec: {containers: {}}", "does not fit"},
		{"apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c, image: a}]}", "metadata.name is missing"},
		{head, "spec.containers: Required"},
		{strings.Replace(spec(""), "web", "We_b", 1), "metadata.name: Invalid"},
		{strings.Replace(spec(""), "{name: web}", "{name: web, namespace: a/b}", 1), "metadata.namespace: Invalid"},
		{strings.Replace(spec(""), "{name: web}", "{name: web, uid: ../x}", 1), "metadata.uid: Invalid"},
		{strings.Replace(spec(""), "{name: web}", "{name: web, labels: {a: 'b c'}}", 1), "metadata.labels[a]: Invalid"},
		{spec("serviceAccountName: x"), "may not use a service account"},
		{spec("serviceAccount: x"), "may not use a service account"},
		{spec("imagePullSecrets: [{name: x}]"), "may not use secrets"},
		{spec("resourceClaims: [{name: x}]"), "may not use resource claims"},
		{spec("ephemeralContainers: [{name: e, image: a}]"), "ephemeralContainers: Forbidden"},
		{spec("restartPolicy: Sometimes"), "spec.restartPolicy: Unsupported"},
		{spec("dnsPolicy: None"), "spec.dnsConfig.nameservers: Required"},
		{spec("activeDeadlineSeconds: 0"), "spec.activeDeadlineSeconds: Invalid"},
		{spec("hostname: a.b"), "spec.hostname: Invalid"},
		{spec("initContainers: [{name: c, image: a}]"), "spec.containers[0].name: Duplicate"},
		{spec("initContainers: [{name: i, image: a, livenessProbe: {exec: {command: [x]}}}]"), "initContainers[0].livenessProbe: Forbidden"},
		{container("env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]"), "secrets (env A of container c)"},
		{container("env: [{name: A, valueFrom: {configMapKeyRef: {name: s, key: k}}}]"), "configMaps (env A"},
		{container("envFrom: [{configMapRef: {name: s}}]"), "configMaps (envFrom"},
		{container("envFrom: [{secretRef: {name: s}}]"), "secrets (envFrom"},
		{container("env: [{name: 'A=B'}]"), "env[0].name: Invalid"},
		{container("env: [{name: A, value: b, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"), "env[0].valueFrom: Forbidden"},
		{container("imagePullPolicy: Often"), "imagePullPolicy: Unsupported"},
		{container("ports: [{containerPort: 0}]"), "containerPort: Invalid"},
		{container("ports: [{containerPort: 1, name: p}, {containerPort: 2, name: p}]"), "ports[1].name: Duplicate"},
		{container("ports: [{containerPort: 1, hostPort: 9}, {containerPort: 2, hostPort: 9}]"), "hostPort: Duplicate"},
		{container("volumeMounts: [{name: w, mountPath: /w}]"), "volumeMounts[0].name: Not found"},
		{container("volumeMounts: [{name: v, mountPath: /w}, {name: v, mountPath: /w}]"), "mountPath: Duplicate"},
		{container("volumeMounts: [{name: v}]"), "mountPath: Required"},
		{container("volumeMounts: [{name: v, mountPath: /w, subPath: ../x}]"), "subPath: Invalid"},
		{container("livenessProbe: {}"), "livenessProbe: Invalid"},
		{container("livenessProbe: {exec: {command: [x]}, successThreshold: 2}"), "successThreshold: Invalid"},
		{container("readinessProbe: {exec: {command: [x]}, periodSeconds: -1}"), "periodSeconds: Invalid"},
		{container("lifecycle: {preStop: {}}"), "lifecycle.preStop: Invalid"},
		{container("resources: {limits: {cpu: 1}, requests: {cpu: 2}}"), "requests[cpu]: Invalid"},
		{container("resources: {limits: {cpu: -1}}"), "limits[cpu]: Invalid"},
		{container("resources: {limits: {cpu: 1e2000000000}}"), "out of bounds"},
		{container("resources: {limits: {cpu: '12345678901234567890e2000000000'}}"), "out of bounds"},
		{container("resources: {claims: [{name: x}]}"), "resources.claims: Forbidden"},
		{head + "spec: {containers: [{name: c, image: ' a'}]}", "image: Invalid"},
		{head + "spec: {hostNetwork: true, containers: [{name: c, image: a, ports: [{containerPort: 1, hostPort: 2}]}]}", "hostPort: Invalid"},
		{volume("configMap: {name: x}"), "configMaps (volume v)"},
		{volume("secret: {secretName: x}"), "secrets (volume v)"},
		{volume("persistentVolumeClaim: {claimName: x}"), "persistent volume claims (volume v)"},
		{volume("ephemeral: {}"), "persistent volume claims (volume v)"},
		{volume("csi: {driver: x}"), "CSI drivers (volume v)"},
		{volume("projected: {sources: [{serviceAccountToken: {path: t}}]}"), "service account tokens (volume v)"},
		{volume("projected: {sources: [{configMap: {name: t}}]}"), "configMaps (volume v)"},
		{volume("projected: {sources: [{secret: {name: t}}]}"), "secrets (volume v)"},
		{volume("projected: {sources: [{clusterTrustBundle: {path: t}}]}"), "cluster trust bundles (volume v)"},
		{volume("projected: {sources: [{podCertificate: {keyType: t}}]}"), "pod certificates (volume v)"},
		{volume("hostPath: {path: /a/../b}"), "hostPath.path: Invalid"},
		{volume("hostPath: {path: /a, type: Link}"), "hostPath.type: Unsupported"},
		{volume("hostPath: {path: /a}, emptyDir: {}"), "volumes[0]: Forbidden"},
		{spec("volumes: [{name: v}, {name: v}]"), "volumes[1].name: Duplicate"},
	} {
		pods, _, err := Decode([]byte(c[0]), file)
		if err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s\ngives %v, %v; want %q", c[0], pods, err, c[1])
		}
	}
}

// Decode never panics, and decodes the same text to the same result.
func TestAnything(t *testing.T) {
	parts := []string{head, "spec:\n", "  containers:\n", "  - name: c\n", "    image: a\n", "---\n", "}", "\t", "  volumes: [{name: v, emptyDir: {}}]\n", "x: y\n", "\xff", "null\n"}
	rapid.Check(t, func(rt *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 0, 12).Draw(rt, "parts"), "")
		first, _, err := Decode([]byte(text), file)
		again, _, errAgain := Decode([]byte(text), file)
		if fmt.Sprint(err) != fmt.Sprint(errAgain) {
			rt.Fatalf("%v, then %v", err, errAgain)
		}
		if diff := cmp.Diff(first, again); diff != "" {
			rt.Fatal(diff)
		}
		for _, p := range first {
			// The defaults are complete: defaulting a pod again adds nothing.
			full := p.DeepCopy()
			setDefaults(full)
			if diff := cmp.Diff(p, full); diff != "" {
				rt.Fatal(diff)
			}
			if _, err := yaml.Marshal(p); err != nil {
				rt.Fatal(err)
			}
		}
	})
}

// FuzzManifest decodes any file in a remote host's staticPodPath.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(head + "spec: {containers: [{name: c, image: a, resources: {limits: {cpu: 1}}}]}"))
	f.Add([]byte("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]"))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		pods, _, err := Decode(data, file)
		if err == nil && (len(pods) != 1 || pods[0].Name == "" || pods[0].UID == "") {
			t.Errorf("%d pods of %q", len(pods), data)
		}
	})
}
