package spec_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func lines(env []spec.EnvVar) []string {
	var out []string
	for _, e := range env {
		out = append(out, e.Name+"="+e.Value)
	}
	return out
}

func TestEnvOrderAndOverrides(t *testing.T) {
	no := false
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: v1.PodSpec{EnableServiceLinks: &no}}
	c := &v1.Container{
		EnvFrom: []v1.EnvFromSource{
			{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "one"}}},
			{Prefix: "P_", SecretRef: &v1.SecretEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "two"}}},
		},
		Env: []v1.EnvVar{
			{Name: "PATH", Value: "$(PATH):/more"},
			{Name: "LATER", Value: "$(Z)"}, // Z comes after it
			{Name: "Z", Value: "z"},
			{Name: "Z", Value: "$(Z)z"},
			{Name: "ESCAPED", Value: "$$(Z)"},
			{Name: "FROM_SECRET", Value: "$(P_k)"},
			{Name: "BLANK"},
		},
	}
	in := spec.EnvInput{
		ConfigMaps: map[string]*v1.ConfigMap{"one": {Data: map[string]string{"PATH": "/bin", "B": "b", "A": "a"}}},
		Secrets:    map[string]*v1.Secret{"two": {Data: map[string][]byte{"k": []byte("$(A)")}}},
		Services:   []*v1.Service{service("shop", "linked", "10.0.0.1", v1.ServicePort{Port: 1})},
	}
	got, err := spec.Env(p, c, in)
	testutil.Must(t, err)
	want := []string{"A=a", "B=b", "PATH=/bin:/more", "P_k=$(A)", "LATER=$(Z)", "Z=zz", "ESCAPED=$(Z)", "FROM_SECRET=$(A)", "BLANK="}
	if diff := cmp.Diff(want, lines(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEnvMissing(t *testing.T) {
	yes := true
	name := func(n string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: n} }
	in := spec.EnvInput{
		ConfigMaps: map[string]*v1.ConfigMap{"have": {}},
		Secrets:    map[string]*v1.Secret{"have": {}},
	}
	for _, c := range []struct {
		container v1.Container
		want      spec.MissingError
	}{
		{v1.Container{EnvFrom: []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: name("no")}}}}, spec.MissingError{"configmap", "shop", "no", ""}},
		{v1.Container{EnvFrom: []v1.EnvFromSource{{SecretRef: &v1.SecretEnvSource{LocalObjectReference: name("no")}}}}, spec.MissingError{"secret", "shop", "no", ""}},
		{v1.Container{Env: []v1.EnvVar{{Name: "X", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: name("no"), Key: "k"}}}}}, spec.MissingError{"configmap", "shop", "no", ""}},
		{v1.Container{Env: []v1.EnvVar{{Name: "X", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: name("have"), Key: "k"}}}}}, spec.MissingError{"configmap", "shop", "have", "k"}},
		{v1.Container{Env: []v1.EnvVar{{Name: "X", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: name("no"), Key: "k"}}}}}, spec.MissingError{"secret", "shop", "no", ""}},
		{v1.Container{Env: []v1.EnvVar{{Name: "X", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: name("have"), Key: "k"}}}}}, spec.MissingError{"secret", "shop", "have", "k"}},
	} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}}
		_, err := spec.Env(p, &c.container, in)
		var missing *spec.MissingError
		if !errors.As(err, &missing) || *missing != c.want {
			t.Errorf("got %v, want %v", err, &c.want)
			continue
		}
		// With optional set, nothing is added and nothing fails.
		for i := range c.container.EnvFrom {
			if r := c.container.EnvFrom[i].ConfigMapRef; r != nil {
				r.Optional = &yes
			}
			if r := c.container.EnvFrom[i].SecretRef; r != nil {
				r.Optional = &yes
			}
		}
		for i := range c.container.Env {
			if r := c.container.Env[i].ValueFrom.ConfigMapKeyRef; r != nil {
				r.Optional = &yes
			}
			if r := c.container.Env[i].ValueFrom.SecretKeyRef; r != nil {
				r.Optional = &yes
			}
		}
		if env, err := spec.Env(p, &c.container, in); err != nil || len(env) != 0 {
			t.Errorf("optional %v: %v, %v", c.want, env, err)
		}
	}
}

// TestEnvProperties: names are unique, the last value wins, equal input gives equal output, and
// EnvRefs names everything that Env looks up.
func TestEnvProperties(t *testing.T) {
	names := []string{"A", "B", "C", "D"}
	rapid.Check(t, func(t *rapid.T) {
		pick := rapid.SampledFrom(names)
		maps := map[string]*v1.ConfigMap{}
		for _, n := range names {
			data := map[string]string{}
			for _, key := range rapid.SliceOf(pick).Draw(t, "keys") {
				data[key] = n + key
			}
			maps[n] = &v1.ConfigMap{Data: data}
		}
		c := &v1.Container{}
		for _, n := range rapid.SliceOfN(pick, 0, 4).Draw(t, "from") {
			c.EnvFrom = append(c.EnvFrom, v1.EnvFromSource{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: n}}})
		}
		for i, n := range rapid.SliceOfN(pick, 0, 6).Draw(t, "env") {
			if rapid.Bool().Draw(t, "literal") {
				c.Env = append(c.Env, v1.EnvVar{Name: n, Value: fmt.Sprint("v", i)})
				continue
			}
			optional := true
			c.Env = append(c.Env, v1.EnvVar{Name: n, ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{
				LocalObjectReference: v1.LocalObjectReference{Name: pick.Draw(t, "object")}, Key: pick.Draw(t, "key"), Optional: &optional}}})
		}
		p := &v1.Pod{}
		refs, _ := spec.ContainerEnvRefs(c)
		known := map[string]*v1.ConfigMap{}
		for _, n := range refs {
			known[n] = maps[n]
		}
		got, err := spec.Env(p, c, spec.EnvInput{ConfigMaps: known})
		if err != nil {
			t.Fatalf("EnvRefs %v left something out: %v", refs, err)
		}
		again, _ := spec.Env(p, c, spec.EnvInput{ConfigMaps: maps})
		if !slices.Equal(got, again) {
			t.Fatalf("%v, then %v", got, again)
		}
		want := map[string]string{}
		for _, from := range c.EnvFrom {
			for k, v := range maps[from.ConfigMapRef.Name].Data {
				want[k] = v
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom == nil {
				want[e.Name] = e.Value
			} else if v, ok := maps[e.ValueFrom.ConfigMapKeyRef.Name].Data[e.ValueFrom.ConfigMapKeyRef.Key]; ok {
				want[e.Name] = v
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%v, want %v", got, want)
		}
		for _, e := range got {
			if want[e.Name] != e.Value {
				t.Fatalf("%s is %q, want %q", e.Name, e.Value, want[e.Name])
			}
		}
	})
}

func TestServiceEnvChoice(t *testing.T) {
	port := v1.ServicePort{Port: 1}
	services := []*v1.Service{
		service("shop", "kubernetes", "10.0.0.9", port), service("default", "kubernetes", "10.0.0.1", port),
		service("default", "other", "10.0.0.2", port), service("shop", "web", "fd00::2", port),
		service("shop", "external", "", port), service("shop", "portless", "10.0.0.3"),
	}
	hosts := func(links bool, namespace string) (out []string) {
		for _, order := range [][]*v1.Service{services, reversed(services)} {
			var one []string
			for _, v := range spec.ServiceEnv(order, namespace, links) {
				if len(v.Name) > 13 && v.Name[len(v.Name)-13:] == "_SERVICE_HOST" || v.Name == "WEB_PORT" {
					one = append(one, v.Name+"="+v.Value)
				}
			}
			if out != nil && !slices.Equal(out, one) {
				t.Errorf("the order of services matters: %v, %v", out, one)
			}
			out = one
		}
		return out
	}
	for _, c := range []struct {
		links     bool
		namespace string
		want      []string
	}{
		{true, "shop", []string{"KUBERNETES_SERVICE_HOST=10.0.0.9", "WEB_SERVICE_HOST=fd00::2", "WEB_PORT=tcp://[fd00::2]:1"}},
		{false, "shop", []string{"KUBERNETES_SERVICE_HOST=10.0.0.1"}},
		{true, "default", []string{"KUBERNETES_SERVICE_HOST=10.0.0.1", "OTHER_SERVICE_HOST=10.0.0.2"}},
		{false, "default", []string{"KUBERNETES_SERVICE_HOST=10.0.0.1"}},
	} {
		if got := hosts(c.links, c.namespace); !slices.Equal(got, c.want) {
			t.Errorf("links %v in %s: %v, want %v", c.links, c.namespace, got, c.want)
		}
	}
}

func reversed(s []*v1.Service) []*v1.Service {
	s = slices.Clone(s)
	slices.Reverse(s)
	return s
}

func TestResourceValue(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{
		{Name: "a", Resources: v1.ResourceRequirements{Requests: list("cpu", "100m", "memory", "100Mi", "hugepages-2Mi", "4Mi"), Limits: list("memory", "1000Mi")}},
		{Name: "b"},
	}}}
	allocatable := list("cpu", "3500m", "memory", "8Gi")
	for _, c := range []struct{ container, resource, divisor, want string }{
		{"", "requests.cpu", "", "1"}, // rounded up
		{"", "requests.cpu", "1m", "100"},
		{"", "requests.cpu", "50m", "2"},
		{"", "limits.cpu", "1m", "3500"},
		{"", "limits.memory", "1Gi", "1"},
		{"", "limits.memory", "1Mi", "1000"},
		{"", "requests.hugepages-2Mi", "1Mi", "4"},
		{"", "limits.hugepages-2Mi", "1Mi", "0"},
		{"", "limits.ephemeral-storage", "", "0"},
		{"b", "limits.memory", "1Gi", "8"},
		{"b", "requests.memory", "", "0"},
	} {
		ref := &v1.ResourceFieldSelector{ContainerName: c.container, Resource: c.resource}
		if c.divisor != "" {
			ref.Divisor = resource.MustParse(c.divisor)
		}
		if got, err := spec.ResourceValue(p, &p.Spec.Containers[0], ref, allocatable); err != nil || got != c.want {
			t.Errorf("%s of %q by %q: %q, %v; want %q", c.resource, c.container, c.divisor, got, err, c.want)
		}
	}
	for _, ref := range []v1.ResourceFieldSelector{{Resource: "limits.gpu"}, {Resource: "cpu"}, {Resource: "wants.cpu"}, {ContainerName: "none", Resource: "limits.cpu"}} {
		if got, err := spec.ResourceValue(p, &p.Spec.Containers[0], &ref, allocatable); err == nil {
			t.Errorf("%+v: %q; want an error", ref, got)
		}
	}
}

func TestFieldValueErrors(t *testing.T) {
	for _, path := range []string{"", "status.phase", "spec.containers", "metadata.labels['']", "metadata.labels['a b']", "status.podIP['x']", "metadata.annotations['a/b/c']"} {
		if got, err := spec.FieldValue(&v1.Pod{}, &v1.ObjectFieldSelector{FieldPath: path}, spec.FieldInput{}); err == nil {
			t.Errorf("%q: %q; want an error", path, got)
		}
	}
	if _, err := spec.FieldValue(&v1.Pod{}, &v1.ObjectFieldSelector{APIVersion: "v2", FieldPath: "metadata.name"}, spec.FieldInput{}); err == nil {
		t.Error("API version v2 has no error")
	}
}
