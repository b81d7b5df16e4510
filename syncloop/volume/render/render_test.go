package render

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func ptr[T any](x T) *T { return &x }

func ref(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }

func notFound(kind, name string) error { return apierrors.NewNotFound(v1.Resource(kind), name) }

func sources() Sources {
	return Sources{
		ConfigMaps: map[string]ConfigMap{
			"cfg":  {Object: &v1.ConfigMap{Data: map[string]string{"a": "1", "b": "2"}, BinaryData: map[string][]byte{"bin": {0, 255}}}},
			"none": {Err: notFound("configmap", "none")},
			"lost": {Err: errors.New("API server away")},
		},
		Secrets: map[string]Secret{
			"sec":  {Object: &v1.Secret{Data: map[string][]byte{"key": []byte("x"), "crt": []byte("y")}}},
			"none": {Err: notFound("secret", "none")},
		},
		Tokens: map[TokenKey]Token{
			{ExpirationSeconds: 3607}: {Token: "api-token"},
			{Audience: "vault"}:       {Token: "vault-token"},
			{Audience: "bad"}:         {Err: errors.New("failed to fetch token: refused")},
		},
		Certificates: map[int]Certificate{0: {Key: []byte("KEY"), Chain: []byte("CHAIN")}, 1: {Err: errors.New("not issued yet")}},
		Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("3500m"), v1.ResourceMemory: resource.MustParse("4Gi"),
		},
	}
}

func volume(s v1.VolumeSource) *v1.Volume { return &v1.Volume{Name: "v", VolumeSource: s} }

func configMap(s v1.ConfigMapVolumeSource) *v1.Volume { return volume(v1.VolumeSource{ConfigMap: &s}) }
func secret(s v1.SecretVolumeSource) *v1.Volume       { return volume(v1.VolumeSource{Secret: &s}) }
func projected(mode *int32, s ...v1.VolumeProjection) *v1.Volume {
	return volume(v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{DefaultMode: mode, Sources: s}})
}

// show formats a tree, one line per file.
func show(t Tree) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(t)) {
		f := t[name]
		b.WriteString(name + " " + f.Mode.String())
		if f.UID >= 0 {
			b.WriteString(" uid=" + resource.NewQuantity(f.UID, resource.DecimalSI).String())
		}
		if f.GID >= 0 {
			b.WriteString(" gid=" + resource.NewQuantity(f.GID, resource.DecimalSI).String())
		}
		b.WriteString(" " + string(f.Data) + "\n")
	}
	return b.String()
}

func TestRender(t *testing.T) {
	plain := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "web-0", UID: "uid-1",
			Labels:      map[string]string{"b": "2", "a": "1"},
			Annotations: map[string]string{"note": "line\n\"two\"", "example.com/K": "v"},
		},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "main",
			Resources: v1.ResourceRequirements{
				Limits:   v1.ResourceList{v1.ResourceCPU: resource.MustParse("1500m")},
				Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("65Mi"), "hugepages-2Mi": resource.MustParse("4Mi")},
			},
		}}, InitContainers: []v1.Container{{Name: "init"}}},
	}
	grouped := plain.DeepCopy()
	grouped.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr(int64(2000))}
	owned := plain.DeepCopy()
	owned.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: ptr(int64(1000))}
	both := grouped.DeepCopy()
	both.Spec.SecurityContext.RunAsUser = ptr(int64(1000))
	split := owned.DeepCopy()
	split.Spec.Containers[0].SecurityContext = &v1.SecurityContext{RunAsUser: ptr(int64(1))}

	token := v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr(int64(3607))}}
	field := func(path, field string) v1.DownwardAPIVolumeFile {
		return v1.DownwardAPIVolumeFile{Path: path, FieldRef: &v1.ObjectFieldSelector{FieldPath: field}}
	}
	amount := func(path, container, what, divisor string) v1.DownwardAPIVolumeFile {
		r := &v1.ResourceFieldSelector{ContainerName: container, Resource: what}
		if divisor != "" {
			r.Divisor = resource.MustParse(divisor)
		}
		return v1.DownwardAPIVolumeFile{Path: path, ResourceFieldRef: r}
	}
	downward := func(items ...v1.DownwardAPIVolumeFile) *v1.Volume {
		return volume(v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: items}})
	}

	for name, c := range map[string]struct {
		pod  *v1.Pod
		v    *v1.Volume
		want string // the tree, or the error after "error: "
	}{
		"configMap: all keys": {v: configMap(v1.ConfigMapVolumeSource{LocalObjectReference: ref("cfg")}),
			want: "a -rw-r--r-- 1\nb -rw-r--r-- 2\nbin -rw-r--r-- \x00\xff\n"},
		"configMap: items with paths and modes": {
			v: configMap(v1.ConfigMapVolumeSource{LocalObjectReference: ref("cfg"), DefaultMode: ptr(int32(0o400)),
				Items: []v1.KeyToPath{{Key: "a", Path: "dir/./a.txt"}, {Key: "bin", Path: "b", Mode: ptr(int32(0o755))}}}),
			want: "b -rwxr-xr-x \x00\xff\ndir/a.txt -r-------- 1\n"},
		"configMap: missing": {v: configMap(v1.ConfigMapVolumeSource{LocalObjectReference: ref("none")}),
			want: `error: configmap "none" not found`},
		"configMap: missing and optional": {v: configMap(v1.ConfigMapVolumeSource{LocalObjectReference: ref("none"), Optional: ptr(true)})},
		"configMap: optional forgives no other error": {v: configMap(v1.ConfigMapVolumeSource{LocalObjectReference: ref("lost"), Optional: ptr(true)}),
			want: "error: API server away"},
		"configMap: missing key": {
			v:    configMap(v1.ConfigMapVolumeSource{LocalObjectReference: ref("cfg"), Items: []v1.KeyToPath{{Key: "zz", Path: "p"}}}),
			want: "error: configmap references non-existent config key: zz"},
		"configMap: missing key, optional": {
			v: configMap(v1.ConfigMapVolumeSource{LocalObjectReference: ref("cfg"), Optional: ptr(true), Items: []v1.KeyToPath{{Key: "zz", Path: "p"}, {Key: "a", Path: "a"}}}),

			want: "a -rw-r--r-- 1\n"},
		"configMap: a path that leaves": {
			v:    configMap(v1.ConfigMapVolumeSource{LocalObjectReference: ref("cfg"), Items: []v1.KeyToPath{{Key: "a", Path: "x/../../a"}}}),
			want: "error: invalid path: must not contain '..': x/../../a"},
		"configMap: a path through a file": {
			v:    configMap(v1.ConfigMapVolumeSource{LocalObjectReference: ref("cfg"), Items: []v1.KeyToPath{{Key: "a", Path: "x"}, {Key: "b", Path: "x/y"}}}),
			want: `error: conflicting paths: "x" is a file and "x/y" is below it`},
		"configMap: fsGroup can read every file": {pod: grouped,
			v: configMap(v1.ConfigMapVolumeSource{LocalObjectReference: ref("cfg"), DefaultMode: ptr(int32(0o400)), Items: []v1.KeyToPath{{Key: "a", Path: "a"}, {Key: "b", Path: "b", Mode: ptr(int32(0o711))}}}),

			want: "a -r--r----- gid=2k 1\nb -rwxr-x--x gid=2k 2\n"},
		"secret": {v: secret(v1.SecretVolumeSource{SecretName: "sec", DefaultMode: ptr(int32(0o440))}),
			want: "crt -r--r----- y\nkey -r--r----- x\n"},
		"secret: missing": {v: secret(v1.SecretVolumeSource{SecretName: "none"}), want: `error: secret "none" not found`},
		"secret: missing key": {
			v:    secret(v1.SecretVolumeSource{SecretName: "sec", Items: []v1.KeyToPath{{Key: "zz", Path: "p"}}}),
			want: "error: references non-existent secret key: zz"},
		"downwardAPI: fields": {
			v: downward(field("name", "metadata.name"), field("ns", "metadata.namespace"), field("uid", "metadata.uid"),
				field("labels", "metadata.labels"), field("d/annotations", "metadata.annotations"),
				field("one", "metadata.annotations['example.com/K']"), field("lab", "metadata.labels['a']"), field("absent", "metadata.labels['zz']")),
			want: "absent -rw-r--r-- \nd/annotations -rw-r--r-- example.com/K=\"v\"\nnote=\"line\\n\\\"two\\\"\"\nlab -rw-r--r-- 1\n" +
				"labels -rw-r--r-- a=\"1\"\nb=\"2\"\nname -rw-r--r-- web-0\nns -rw-r--r-- ns\none -rw-r--r-- v\nuid -rw-r--r-- uid-1\n"},
		"downwardAPI: resources, rounded up; a limit that is not set is the node's": {
			v: downward(amount("cpu", "main", "limits.cpu", ""), amount("milli", "main", "limits.cpu", "1m"),
				amount("mem", "main", "requests.memory", "10Mi"), amount("node", "main", "limits.memory", "1Mi"),
				amount("init", "init", "limits.cpu", "1m"), amount("huge", "main", "requests.hugepages-2Mi", "1Mi"),
				amount("nohuge", "main", "limits.hugepages-2Mi", "")),
			want: "cpu -rw-r--r-- 2\nhuge -rw-r--r-- 4\ninit -rw-r--r-- 3500\nmem -rw-r--r-- 7\nmilli -rw-r--r-- 1500\nnode -rw-r--r-- 4096\nnohuge -rw-r--r-- 0\n"},
		"downwardAPI: faults come together": {
			v:    downward(field("a", "status.podIP"), amount("b", "zz", "limits.cpu", ""), amount("c", "main", "limits.gpu", ""), field("ok", "metadata.name")),
			want: "error: [unsupported fieldPath: status.podIP, container zz not found, unsupported container resource : limits.gpu]"},
		"downwardAPI: no such subscript": {v: downward(field("a", "metadata.name['x']")),
			want: `error: fieldPath "metadata.name['x']" does not support subscript`},
		"projected: what every pod has": {
			v: projected(ptr(int32(0o644)), token,
				v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: ref("cfg"), Items: []v1.KeyToPath{{Key: "a", Path: "ca.crt"}}}},
				v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{field("namespace", "metadata.namespace")}}}),
			want: "ca.crt -rw-r--r-- 1\nnamespace -rw-r--r-- ns\ntoken -rw-r--r-- api-token\n"},
		"projected: a token is its user's alone": {pod: owned, v: projected(nil, token), want: "token -rw------- uid=1k api-token\n"},
		"projected: or its group's":              {pod: grouped, v: projected(nil, token), want: "token -rw-r----- gid=2k api-token\n"},
		"projected: or both's":                   {pod: both, v: projected(nil, token), want: "token -rw-r----- uid=1k gid=2k api-token\n"},
		"projected: with two users no one's": {pod: split,
			v: projected(nil, token), want: "token -rw-r--r-- api-token\n"},
		"projected: the later source wins": {
			v: projected(nil,
				v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: ref("cfg"), Items: []v1.KeyToPath{{Key: "a", Path: "same"}}}},
				v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: ref("sec"), Items: []v1.KeyToPath{{Key: "key", Path: "same"}}}}),
			want: "same -rw-r--r-- x\n"},
		"projected: faults come together": {
			v: projected(nil,
				v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: ref("none")}},
				v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: ref("none"), Optional: ptr(true)}},
				v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "t", Audience: "bad"}}),
			want: `error: [configmap "none" not found, failed to fetch token: refused]`},
		"projected: a certificate in one file and in two": {
			v:    projected(nil, v1.VolumeProjection{PodCertificate: &v1.PodCertificateProjection{CredentialBundlePath: "both", KeyPath: "key", CertificateChainPath: "chain"}}),
			want: "both -rw-r--r-- KEYCHAIN\nchain -rw-r--r-- CHAIN\nkey -rw-r--r-- KEY\n"},
		"projected: a certificate that is not there yet": {
			v:    projected(nil, v1.VolumeProjection{}, v1.VolumeProjection{PodCertificate: &v1.PodCertificateProjection{CredentialBundlePath: "p"}}),
			want: "error: not issued yet"},
		"projected: a certificate that no one asked for": {
			v:    projected(nil, v1.VolumeProjection{}, v1.VolumeProjection{}, v1.VolumeProjection{PodCertificate: &v1.PodCertificateProjection{CredentialBundlePath: "p"}}),
			want: "error: the certificate was not asked for"},
		"projected: a trust bundle of no name": {
			v:    projected(nil, v1.VolumeProjection{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Path: "p"}}),
			want: "error: ClusterTrustBundle projection requires either name or signerName to be set"},
		"another kind": {v: volume(v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{}}), want: "error: volumes of type iscsi are not supported by this node"},
		"no kind":      {v: volume(v1.VolumeSource{}), want: "error: volumes of type none are not supported by this node"},
	} {
		t.Run(name, func(t *testing.T) {
			p := c.pod
			if p == nil {
				p = plain
			}
			tree, err := Render(p, c.v, sources())
			got := show(tree)
			if err != nil {
				got = "error: " + err.Error()
			}
			if got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestErrorsKeepTheirKind(t *testing.T) {
	p := &v1.Pod{}
	_, err := Render(p, projected(nil,
		v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: ref("none")}},
		v1.VolumeProjection{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Name: ptr("x")}}), Sources{
		Secrets:      sources().Secrets,
		TrustBundles: map[int]TrustBundles{1: {Err: &UnsupportedError{Type: "projected clusterTrustBundle"}}},
	})
	if !IsUnsupported(err) {
		t.Errorf("unsupported is lost in %v", err)
	}
	_, err = Render(p, secret(v1.SecretVolumeSource{SecretName: "none"}), sources())
	if !apierrors.IsNotFound(err) || IsUnsupported(err) {
		t.Errorf("kind of %v", err)
	}
}

func TestNeeds(t *testing.T) {
	n := NeedsOf(projected(nil,
		v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: ref("s")}},
		v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: ref("s")}},
		v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: ref("c")}},
		v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Audience: "a", ExpirationSeconds: ptr(int64(600))}},
	))
	if !slices.Equal(n.Secrets, []string{"s"}) || !slices.Equal(n.ConfigMaps, []string{"c"}) || !slices.Equal(n.Tokens, []TokenKey{{"a", 600}}) {
		t.Errorf("needs = %+v", n)
	}
}

func TestCheckPath(t *testing.T) {
	for p, fault := range map[string]string{
		"a": "", "a/b.c": "", "a..b": "", "a/..b": "", ".a": "", "..": "must not contain", "..data": "must not start", "../a": "must not contain",
		"/a": "must be relative", "": "must not be empty", ".": "must name a file", "a/../b": "must not contain", "./..data/x": "must not start",
		strings.Repeat("a", 255): "", strings.Repeat("a", 256): "filenames", strings.Repeat("a/", 2049): "characters",
	} {
		err := CheckPath(p)
		if fault == "" && err != nil || fault != "" && (err == nil || !strings.Contains(err.Error(), fault)) {
			t.Errorf("%.20q: %v, want %q", p, err, fault)
		}
	}
}

// TestNoPathEscapes: whatever the keys and paths are, the rendered files stay within the volume and
// do not use the names of the atomic layout.
func TestNoPathEscapes(t *testing.T) {
	part := rapid.SampledFrom([]string{"a", "b", "..", ".", "", "..data", "..x", ".h", "a..b"})
	rapid.Check(t, func(t *rapid.T) {
		var items []v1.KeyToPath
		for range rapid.IntRange(1, 4).Draw(t, "items") {
			p := strings.Join(rapid.SliceOfN(part, 1, 4).Draw(t, "parts"), "/")
			items = append(items, v1.KeyToPath{Key: "a", Path: p})
		}
		tree, err := Render(&v1.Pod{}, configMap(v1.ConfigMapVolumeSource{LocalObjectReference: ref("cfg"), Items: items}), sources())
		if err != nil {
			return
		}
		for name := range tree {
			if !fs.ValidPath(name) || name == "." || strings.HasPrefix(name, "..") {
				t.Fatalf("%q of %v", name, items)
			}
		}
	})
}

func TestNested(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{
		Containers: []v1.Container{{VolumeMounts: []v1.VolumeMount{
			{Name: "v", MountPath: "/dir"}, {Name: "o", MountPath: "/dir/nested/double"}, {Name: "o", MountPath: "/dir/nested"},
			{Name: "o", MountPath: "/dir/nested-vol/"}, {Name: "o", MountPath: "/dirt"}, {Name: "o", MountPath: "/dir/nested.vol/deep"},
		}}},
		InitContainers: []v1.Container{{VolumeMounts: []v1.VolumeMount{{Name: "v", MountPath: "/x"}, {Name: "w", MountPath: "/x/init"}}}},
	}}
	got, err := Nested(p, "v")
	if want := []string{"init", "nested", "nested-vol", "nested.vol/deep"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := Nested(p, "o"); err != nil || len(got) != 1 || got[0] != "double" {
		t.Errorf("%v, %v", got, err)
	}
	p.Spec.Containers[0].VolumeMounts[0].MountPath = "../../etc"
	if _, err := Nested(p, "v"); err == nil {
		t.Error("a mount point outside is accepted")
	}
}
