package cri

import (
	"runtime"
	"strings"
	"testing"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestHugeRepliesMakeRoom: the garbage of huge replies is collected, but not at any rate, and not in a
// process whose heap has room for them. An ordinary reply costs no collection.
func TestHugeRepliesMakeRoom(t *testing.T) {
	list := func(size int) []byte {
		wire, err := proto.Marshal(&runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: strings.Repeat("x", size)}}})
		testutil.Must(t, err)
		return wire
	}
	read := func(wire []byte) {
		t.Helper()
		g := &guard{account: budget.New(budget.Limits{}), decode: make(chan struct{}, 1), method: methodOf("/runtime.v1.RuntimeService/ListPodSandbox")}
		testutil.Must(t, g.Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire)}, &runtimeapi.ListPodSandboxResponse{}))
	}
	collections := func(wire []byte, times int) int {
		room = rate.NewLimiter(room.Limit(), room.Burst())
		runtime.GC() // counts what is live now
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range times {
			read(wire)
		}
		runtime.ReadMemStats(&after)
		return int(after.NumForcedGC - before.NumForcedGC)
	}
	if n := collections(list(200<<10), 20); n != 0 {
		t.Errorf("%d collections for ordinary replies", n)
	}
	if n := collections(list(3<<20), 20); n < 4 || n > 7 {
		t.Errorf("%d collections for 20 huge replies at once, want 4 or little more", n)
	}
	many := make([]byte, roomy) // as the drivers of many hosts need
	if n := collections(list(3<<20), 20); n != 0 {
		t.Errorf("%d collections in a process with a large heap", n)
	}
	runtime.KeepAlive(many)
}
