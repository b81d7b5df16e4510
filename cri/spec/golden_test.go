package spec_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// world returns the one host and cluster of all golden pods. The host is one that production
// creates: see TestGoldenMachines of package node.
func world(t *testing.T) (spec.Machine, spec.EnvInput) {
	t.Helper()
	data := testutil.ReadFile(t, "testdata/machine.yaml")
	var m spec.Machine
	testutil.Must(t, yaml.UnmarshalStrict(data, &m))
	env := spec.EnvInput{
		ConfigMaps: map[string]*v1.ConfigMap{"settings": {Data: map[string]string{"COLOR": "blue", "dotted.name": "kept", "LEVEL": "3"}}},
		Secrets:    map[string]*v1.Secret{"creds": {Data: map[string][]byte{"user": []byte("ann"), "PASSWORD": []byte("s3cret")}}},
		Services: []*v1.Service{
			service("default", "kubernetes", "10.96.0.1", v1.ServicePort{Name: "https", Port: 443}),
			service("shop", "cart-db", "10.96.3.4", v1.ServicePort{Port: 5432}, v1.ServicePort{Name: "metrics", Port: 9187, Protocol: v1.ProtocolUDP}),
			service("shop", "headless", "None", v1.ServicePort{Port: 80}),
			service("other", "unseen", "10.96.9.9", v1.ServicePort{Port: 80}),
		},
		FieldInput: spec.FieldInput{
			PodIPs: []string{"10.244.1.5", "fd00::5"}, HostIPs: m.HostIPs, NodeName: "node-1",
			Allocatable: list("cpu", "4", "memory", "7Gi", "ephemeral-storage", "100Gi"),
		},
	}
	return m, env
}

// TestGolden builds the configs of each testdata/pods/*.yaml. A pod's annotation test/machine is
// YAML that overrides the host of world.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/pods/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no pods in testdata: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			data := testutil.ReadFile(t, file)
			var p v1.Pod
			testutil.Must(t, yaml.UnmarshalStrict(data, &p))
			got := render(t, &p)
			if !bytes.Equal(got, render(t, &p)) {
				t.Fatal("two runs on equal input differ")
			}
			golden := filepath.Join("testdata", "golden", name+".json")
			if *update {
				testutil.Must(t, os.WriteFile(golden, got, 0o644))
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v (run go test -update)", err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("golden differs (-want +got):\n%s", diff)
			}
		})
	}
}

func render(t *testing.T, p *v1.Pod) []byte {
	t.Helper()
	m, envIn := world(t)
	if over, ok := p.Annotations["test/machine"]; ok {
		testutil.Must(t, yaml.UnmarshalStrict([]byte(over), &m))
	}
	if p.Spec.HostNetwork {
		envIn.PodIPs = envIn.HostIPs
	}
	out := map[string]any{}
	if config, err := spec.Sandbox(p, m, 1); err != nil {
		out["sandboxError"] = err.Error()
	} else {
		out["sandbox"] = plain(t, config)
	}
	hosts, err := spec.HostsFile(p, m, envIn.PodIPs, []byte("127.0.0.1 base\n"))
	testutil.Must(t, err)
	out["hosts"] = strings.Split(string(hosts), "\n")
	out["podCgroup"] = spec.PodCgroup(p, m)
	if _, warnings, err := spec.DNS(p, m); err == nil && len(warnings) > 0 {
		out["dnsWarnings"] = warnings
	}
	mounts := map[string]spec.VolumeMount{}
	for _, v := range p.Spec.Volumes {
		mounts[v.Name] = spec.VolumeMount{HostPath: spec.VolumeDir(m.RootDir, p.UID, "kubernetes.io/test", v.Name), SELinux: true, ReadOnly: v.ConfigMap != nil}
		if v.Image != nil {
			mounts[v.Name] = spec.VolumeMount{Image: &runtimeapi.ImageSpec{Image: v.Image.Reference}, ReadOnly: true}
		}
	}
	containers := map[string]any{}
	for i, c := range append(append([]v1.Container{}, p.Spec.InitContainers...), p.Spec.Containers...) {
		containers[c.Name] = renderContainer(t, p, &c, m, envIn, spec.ContainerInput{Attempt: uint32(i), Mounts: mounts})
	}
	for _, e := range p.Spec.EphemeralContainers {
		c := v1.Container(e.EphemeralContainerCommon)
		in := spec.ContainerInput{Mounts: mounts}
		if e.TargetContainerName != "" {
			in.TargetID = "id-of-" + e.TargetContainerName
		}
		containers[c.Name] = renderContainer(t, p, &c, m, envIn, in)
	}
	out["containers"] = containers
	data, err := json.MarshalIndent(out, "", "  ")
	testutil.Must(t, err)
	return append(data, '\n')
}

func renderContainer(t *testing.T, p *v1.Pod, c *v1.Container, m spec.Machine, envIn spec.EnvInput, in spec.ContainerInput) any {
	t.Helper()
	env, err := spec.Env(p, c, envIn)
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	in.Env, in.PodIPs = env, envIn.PodIPs
	in.ImageUser = spec.UserOf(&runtimeapi.Image{Uid: &runtimeapi.Int64Value{Value: 65532}})
	if strings.Contains(c.Image, "root") {
		in.ImageUser = spec.UserOf(&runtimeapi.Image{})
	}
	in.ImageRef = "sha256:feed"
	in.EtcHostsPath = spec.EtcHostsPath(m.RootDir, p.UID)
	in.TerminationLogPath = spec.TerminationLogPath(m.RootDir, p.UID, c.Name, in.Attempt)
	config, err := spec.Container(p, c, m, in)
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	return plain(t, config)
}

// plain converts a message to maps, with readable environment values.
func plain(t *testing.T, m proto.Message) any {
	t.Helper()
	data, err := protojson.Marshal(m)
	testutil.Must(t, err)
	var out map[string]any
	testutil.Must(t, json.Unmarshal(data, &out))
	if envs, ok := out["envs"].([]any); ok {
		lines := []string{}
		for _, e := range envs {
			pair := e.(map[string]any)
			encoded, _ := pair["value"].(string)
			value, err := base64.StdEncoding.DecodeString(encoded)
			testutil.Must(t, err)
			lines = append(lines, pair["key"].(string)+"="+string(value))
		}
		out["envs"] = lines
	}
	return out
}
