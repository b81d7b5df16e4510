package cri

import (
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/test/corpus"
)

// FuzzDecode decodes containerd events whose payload is any bytes of any type.
func FuzzDecode(f *testing.F) {
	for _, name := range []string{"TaskStart", "TaskExit", "TaskOOM", "TaskDelete", "ContainerDelete", "SandboxExit", "Other"} {
		f.Add("containerd.events."+name, []byte("\x0a\x02c1\x10\x01"))
	}
	f.Add("type.googleapis.com/containerd.events.TaskExit", []byte("\x0a\xff\xff"))
	f.Add("containerd.events.TaskStart", append([]byte("\x0a\x81\x01"), strings.Repeat("c", 129)...))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, name string, payload []byte) {
		e, ok := decode(&types.Envelope{Event: &anypb.Any{TypeUrl: name, Value: payload}})
		if ok && (e.ContainerID == "" || len(e.ContainerID) > min(len(payload), maxEventID)) {
			t.Errorf("%+v of %q", e, payload)
		}
	})
}

// FuzzDecodeCRI decodes CRI events from any bytes that are a message.
func FuzzDecodeCRI(f *testing.F) {
	f.Add([]byte("\x0a\x02c1\x10\x01"))
	f.Add(append([]byte("\x0a\x81\x01"), strings.Repeat("c", 129)+"\x10\x01"...))
	f.Add([]byte(""))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var r runtimeapi.ContainerEventResponse
		if proto.Unmarshal(data, &r) != nil {
			return
		}
		if e, ok := decodeCRI(&r); ok && (e.ContainerID == "" || len(e.ContainerID) > maxEventID) {
			t.Errorf("%+v", e)
		}
	})
}
