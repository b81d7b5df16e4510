package cri

import (
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// FuzzCost: every item of the decoded message was counted, whatever the bytes.
func FuzzCost(f *testing.F) {
	seed, err := proto.Marshal(&runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{
		{Id: "a", Labels: map[string]string{"a": "b", "c": ""}, Metadata: &runtimeapi.PodSandboxMetadata{Name: "n"}}, {},
	}})
	testutil.Must(f, err)
	f.Add(seed)
	f.Add([]byte{0x0a, 0, 0x0a, 0})
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, wire []byte) {
		var m runtimeapi.ListPodSandboxResponse
		c := cost{limit: 1 << 30}
		c.add(wire, m.ProtoReflect().Descriptor(), 0)
		if proto.Unmarshal(wire, &m) != nil {
			return
		}
		entries := 0
		for _, s := range m.Items {
			entries += len(s.Labels) + len(s.Annotations)
		}
		if c.items < int64(len(m.Items)) || c.memory < int64(ofMessage*(len(m.Items)+entries)) {
			t.Errorf("%d items with %d entries were counted as %+v", len(m.Items), entries, c)
		}
	})
}

// TestEveryReplyHasABudget: also the reply of a method that is not in the table.
func TestEveryReplyHasABudget(t *testing.T) {
	for full, m := range methods {
		if m.output {
			continue
		}
		if m.size != budget.ReplyBytes && m.size != budget.StatusBytes && m.size != budget.LineBytes {
			t.Errorf("%s has no budget", full)
		}
	}
	if m := methodOf("/x.Y/Z"); m.size != budget.StatusBytes {
		t.Errorf("an unknown method has %v", m.size)
	}
}
