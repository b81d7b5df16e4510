package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// document is one of a testdata file: comment lines "# field:" and "# want:", then YAML.
type document struct {
	yaml   string
	fields []string
	want   []string
}

func documents(t *testing.T, file string) []document {
	t.Helper()
	data := testutil.ReadFile(t, file)
	var docs []document
	for text := range strings.SplitSeq(string(data), "\n---\n") {
		d := document{yaml: text + "\n"}
		for line := range strings.SplitSeq(text, "\n") {
			if f, ok := strings.CutPrefix(line, "# field: "); ok {
				d.fields = append(d.fields, strings.Fields(f)...)
			}
			if w, ok := strings.CutPrefix(line, "# want: "); ok {
				d.want = append(d.want, w)
			}
		}
		for _, plain := range []string{"apiVersion: " + APIVersion, "kind: " + Kind, "kubeconfig: node.kubeconfig", "hosts: [{}]"} {
			key, _, _ := strings.Cut(plain, " ")
			if !strings.HasPrefix(d.yaml, key) && !strings.Contains(d.yaml, "\n"+key) {
				d.yaml += plain + "\n"
			}
		}
		docs = append(docs, d)
	}
	return docs
}

func TestValid(t *testing.T) {
	for _, d := range documents(t, "testdata/valid.yaml") {
		if _, err := Parse([]byte(d.yaml)); err != nil {
			t.Errorf("%s\n%v", d.yaml, err)
		}
	}
}

func TestInvalid(t *testing.T) {
	for _, d := range documents(t, "testdata/invalid.yaml") {
		_, err := Parse([]byte(d.yaml))
		var invalid *InvalidError
		if !errors.As(err, &invalid) {
			t.Errorf("%s\nwas taken, or failed otherwise: %v", d.yaml, err)
			continue
		}
		lines := strings.Split(err.Error(), "\n  - ")[1:]
		if len(lines) != len(d.want) || len(lines) != len(invalid.Errors) {
			t.Errorf("%s\n%d mistakes are listed, want %d:\n%v", d.yaml, len(lines), len(d.want), err)
			continue
		}
		for i, want := range d.want {
			if !strings.HasPrefix(lines[i], want) {
				t.Errorf("%s\nmistake %d is\n  %s\nwant\n  %s", d.yaml, i+1, lines[i], want)
			}
		}
	}
}

// TestEveryFieldHasTestdata: each field of the types is in the valid and in the invalid documents.
// Settings of a host count by their names at the top level, and the fields of a template as those
// of a host.
func TestEveryFieldHasTestdata(t *testing.T) {
	var all []string
	var walk func(prefix string, typ reflect.Type)
	walk = func(prefix string, typ reflect.Type) {
		for name, ft := range jsonFields(typ) {
			if _, inherited := jsonFields(reflect.TypeFor[NodeSettings]())[name]; inherited && prefix == "hosts." {
				continue
			}
			all = append(all, prefix+name)
			for ft.Kind() == reflect.Slice || ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			if prefix+name != "hostObjects.template" && ft.Kind() == reflect.Struct && !reflect.PointerTo(ft).Implements(unmarshaler) {
				walk(prefix+name+".", ft)
			}
		}
	}
	walk("", reflect.TypeFor[BowlineConfiguration]())
	for _, file := range []string{"testdata/valid.yaml", "testdata/invalid.yaml"} {
		named := map[string]bool{}
		for _, d := range documents(t, file) {
			for _, f := range d.fields {
				named[f] = true
				leaf := f[strings.LastIndexByte(f, '.')+1:]
				if !strings.Contains(d.yaml, leaf) {
					t.Errorf("%s: the document for %s does not have it", file, f)
				}
			}
		}
		for _, f := range all {
			if !named[f] {
				t.Errorf("%s has no document for %s", file, f)
			}
			delete(named, f)
		}
		for f := range named {
			t.Errorf("%s names %s, which is no field", file, f)
		}
	}
}

func TestDefaults(t *testing.T) {
	c, err := Parse([]byte("apiVersion: bowline.io/v1alpha1\nkind: BowlineConfiguration\nhosts: [{kubeconfig: /k}]\n"))
	testutil.Must(t, err)
	h := c.Hosts[0]
	got := map[string]any{
		"name": h.Name, "endpoint": h.Endpoint, "socket": h.SocketPath(), "kubeconfig": h.Kubeconfig, "root": h.RootDirectory, "logs": h.PodLogsDirectory,
		"address": h.Server.Address, "port": h.Server.Port, "maxPods": h.MaxPods, "pids": *h.PodPidsLimit,
		"quota": *h.CPUCFSQuota, "driver": h.CgroupDriver, "cgroup": h.CgroupRoot, "domain": h.ClusterDomain, "resolv": *h.ResolvConf,
		"sync": h.SyncFrequency.Duration, "report": h.NodeStatusReportFrequency.Duration,
		"lease": h.NodeLeaseDurationSeconds, "serialize": *h.SerializeImagePulls, "parallel": h.MaxParallelImagePulls == nil,
		"anonymous": *h.Authentication.Anonymous.Enabled, "webhook": *h.Authentication.Webhook.Enabled,
		"ttl": h.Authentication.Webhook.CacheTTL.Duration, "authorization": h.Authorization.Mode,
		"yes": h.Authorization.Webhook.CacheAuthorizedTTL.Duration, "no": h.Authorization.Webhook.CacheUnauthorizedTTL.Duration,
		"file": h.FileCheckFrequency.Duration, "http": h.HTTPCheckFrequency.Duration, "static": h.StaticPodPath + h.StaticPodURL,
		"strategy": h.ConfigMapAndSecretChangeDetectionStrategy,
	}
	want := map[string]any{
		"name": "local", "endpoint": "unix:///run/containerd/containerd.sock", "socket": "/run/containerd/containerd.sock", "kubeconfig": "/k",
		"root": "/var/lib/kubelet", "logs": "/var/log/pods",
		"address": "0.0.0.0", "port": int32(10250), "maxPods": int32(110), "pids": int64(-1),
		"quota": true, "driver": "", "cgroup": "/", "domain": "cluster.local", "resolv": "/etc/resolv.conf",
		"sync": time.Minute, "report": 5 * time.Minute,
		"lease": int32(40), "serialize": false, "parallel": true,
		"anonymous": false, "webhook": true, "ttl": 2 * time.Minute, "authorization": "Webhook",
		"yes": 5 * time.Minute, "no": 30 * time.Second,
		"file": 20 * time.Second, "http": 20 * time.Second, "static": "", "strategy": "Watch",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestInheritance(t *testing.T) {
	c, err := Parse([]byte(`
apiVersion: bowline.io/v1alpha1
kind: BowlineConfiguration
kubeconfig: /all
maxPods: 50
cpuCFSQuota: false
resolvConf: ""
clusterDNS: [10.0.0.1]
registerWithTaints: [{key: a, effect: NoSchedule}, {key: b, value: "1", effect: NoSchedule}]
hosts:
  - {nodeName: one, endpoint: /run/one.sock}
  - nodeName: two
    kubeconfig: /own
    maxPods: 10
    cpuCFSQuota: true
    resolvConf: /etc/x
    clusterDNS: []
    rootDirectory: /two
    server: {port: 2}
    taints: [{key: b, value: "2", effect: NoSchedule}, {key: c, effect: NoExecute}]
`))
	testutil.Must(t, err)
	one, two := c.Hosts[0], c.Hosts[1]
	if one.MaxPods != 50 || *one.CPUCFSQuota || *one.ResolvConf != "" || len(one.ClusterDNS) != 1 || one.Kubeconfig != "/all" || one.Name != "one" {
		t.Errorf("the first host has %+v", one)
	}
	if two.MaxPods != 10 || !*two.CPUCFSQuota || *two.ResolvConf != "/etc/x" || len(two.ClusterDNS) != 0 || two.Kubeconfig != "/own" {
		t.Errorf("the second host has %+v", two)
	}
	if one.Endpoint != "unix:///run/one.sock" {
		t.Errorf("a bare path became %s", one.Endpoint)
	}
	if diff := cmp.Diff(c.RegisterWithTaints, one.Taints); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]v1.Taint{{Key: "a", Effect: "NoSchedule"}, {Key: "b", Value: "2", Effect: "NoSchedule"}, {Key: "c", Effect: "NoExecute"}}, two.Taints); diff != "" {
		t.Error(diff)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "bowline.yaml")
	write := func(s string) {
		t.Helper()
		testutil.Must(t, os.WriteFile(file, []byte(s), 0o600))
	}
	write("apiVersion: bowline.io/v1alpha1\nkind: BowlineConfiguration\nkubeconfig: a/k\nauthentication: {x509: {clientCAFile: ca}}\n" +
		"hosts: [{server: {tlsCertFile: /abs/crt, tlsPrivateKeyFile: key}}]\n")
	c, err := Load(file)
	testutil.Must(t, err)
	h := c.Hosts[0]
	got := []string{c.Kubeconfig, h.Kubeconfig, h.Server.TLSCertFile, h.Server.TLSPrivateKeyFile, h.Authentication.X509.ClientCAFile}
	want := []string{dir + "/a/k", dir + "/a/k", "/abs/crt", dir + "/key", dir + "/ca"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := Load(dir + "/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	write("kind: x\n")
	_, err = Load(file)
	if err == nil || !strings.HasPrefix(err.Error(), "configuration "+file+" has 3 mistakes:\n  - apiVersion: Required") {
		t.Errorf("the message is %v", err)
	}
}

func TestNotADocument(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "the document is empty",
		"# nothing\n---\n":        "the document is empty",
		"- a\n":                   "the document is a list; a configuration is a map",
		"just words\n":            "the document is a string",
		"a: b: c\n":               "not YAML",
		"\tkind: x\n":             "not YAML",
		"kind: x\n---\nkind: y\n": "2 documents",
		"kind: &a [*a]\n":         "not YAML",
	} {
		_, err := Parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "\n") != 1 {
			t.Errorf("%q: %v, want one mistake with %q", text, err, want)
		}
	}
}

// FuzzParse: nothing crashes. What loads is complete and loads again. What does not load has an
// error with one line per mistake.
func FuzzParse(f *testing.F) {
	for _, file := range []string{"testdata/valid.yaml", "testdata/invalid.yaml"} {
		data := testutil.ReadFile(f, file)
		for text := range strings.SplitSeq(string(data), "\n---\n") {
			f.Add([]byte(text))
			f.Add([]byte("apiVersion: bowline.io/v1alpha1\nkind: BowlineConfiguration\nkubeconfig: k\n" + text))
		}
	}
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err != nil {
			var invalid *InvalidError
			if !errors.As(err, &invalid) || len(invalid.Errors) == 0 {
				t.Fatalf("the error is %#v", err)
			}
			for _, e := range invalid.Errors {
				if e.Type == "InternalError" {
					t.Fatalf("conform let through what does not decode: %v", err)
				}
			}
			return
		}
		if len(c.Hosts) == 0 && c.HostObjects == nil || c.APIVersion != APIVersion {
			t.Fatalf("loaded %+v", c)
		}
		for _, h := range c.Hosts {
			if h.MaxPods < 1 || h.SyncFrequency.Duration <= 0 || (h.Kubeconfig == "" && h.Identity.Mode == IdentityKubeconfig) || !strings.HasPrefix(h.SocketPath(), "/") {
				t.Fatalf("loaded %+v", h)
			}
		}
		if errs := validate(c); len(errs) > 0 {
			// registerWithTaints were merged into the host's own; both are valid.
			t.Fatalf("what was loaded is invalid: %v", errs)
		}
	})
}

// TestMergedEvictions: a threshold that is set replaces the other default ones only if they are not merged.
func TestMergedEvictions(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"hosts: [{evictionHard: {memory.available: 5%}}]": {"memory.available": "5%"},
		"mergeDefaultEvictionSettings: true\nhosts: [{evictionHard: {memory.available: 5%, pid.available: 10%}}]": {"memory.available": "5%", "pid.available": "10%",
			"nodefs.available": "10%", "nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%"},
		"evictionHard: {nodefs.available: 1Gi}\nhosts: [{mergeDefaultEvictionSettings: true}]": {"memory.available": "100Mi",
			"nodefs.available": "1Gi", "nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%"},
	} {
		c, err := Parse([]byte("apiVersion: bowline.io/v1alpha1\nkind: BowlineConfiguration\nkubeconfig: k\n" + text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if diff := cmp.Diff(want, c.Hosts[0].EvictionHard); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}
