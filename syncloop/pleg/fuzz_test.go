package pleg

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// FuzzStatus converts any statuses that a runtime can send.
func FuzzStatus(f *testing.F) {
	add := func(c *runtimeapi.ContainerStatus, s *runtimeapi.PodSandboxStatus) {
		container, err := proto.Marshal(c)
		testutil.Must(f, err)
		sandbox, err := proto.Marshal(s)
		testutil.Must(f, err)
		f.Add(container, sandbox)
	}
	add(&runtimeapi.ContainerStatus{Id: "c", State: runtimeapi.ContainerState_CONTAINER_RUNNING, StartedAt: 1 << 62,
		Annotations: map[string]string{pod.AnnotationSize: `{"cpuLimit":1}`, pod.AnnotationCrashes: "4294967295", pod.AnnotationRestartCount: "-1"},
		Resources:   &runtimeapi.ContainerResources{Linux: &runtimeapi.LinuxContainerResources{CpuShares: 1 << 62, CpuPeriod: 1, CpuQuota: 1 << 62}}},
		&runtimeapi.PodSandboxStatus{Id: "s", CreatedAt: -1, Network: &runtimeapi.PodSandboxNetworkStatus{AdditionalIps: []*runtimeapi.PodIP{{Ip: "x"}}},
			Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: &runtimeapi.NamespaceOption{
				UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: []*runtimeapi.IDMapping{{}}}}}}})
	add(&runtimeapi.ContainerStatus{State: 77}, &runtimeapi.PodSandboxStatus{})
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, container, sandbox []byte) {
		var c runtimeapi.ContainerStatus
		var s runtimeapi.PodSandboxStatus
		if proto.Unmarshal(container, &c) != nil || proto.Unmarshal(sandbox, &s) != nil {
			return
		}
		c.State %= runtimeapi.ContainerState_CONTAINER_EXITED // its termination message is a file
		g := &Generator{cfg: Config{ClockOffset: func() time.Duration { return 0 }, ClockDoubt: func() {}}}
		if got := g.container(t.Context(), &c, "s", pod.Observed{}); got.ID != c.Id || len(got.Message) > len(c.Message) {
			t.Errorf("%+v of %v", got, &c)
		}
		if got := g.sandbox(&s, pod.Observed{}); got.ID != s.Id || len(got.IPs) > 1+len(s.GetNetwork().GetAdditionalIps()) {
			t.Errorf("%+v of %v", got, &s)
		}
	})
}
