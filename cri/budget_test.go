package cri_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/lying"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

func connectLying(t *testing.T, r *lying.Runtime, a *budget.Account) *cri.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	testutil.Must(t, err)
	t.Cleanup(r.Serve(l))
	c, err := cri.Connect(t.Context(), cri.Config{Dial: dialUnix(path), Budget: a})
	testutil.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// labels returns n labels that are as short on the wire as possible.
func labels(n int) map[string]string {
	m := make(map[string]string, n)
	for i := range n {
		m[strconv.FormatInt(int64(i), 36)] = ""
	}
	return m
}

// TestHostileReplies: whatever a runtime replies, a call takes memory in proportion to the budget,
// names the exceeded budget, and says nothing about any object.
func TestHostileReplies(t *testing.T) {
	list := func(ctx context.Context, c *cri.Client) error { _, err := c.ListPodSandbox(ctx, nil); return err }
	container := func(ctx context.Context, c *cri.Client) error { _, err := c.ContainerStatus(ctx, "c"); return err }
	for name, c := range map[string]struct {
		method string
		reply  lying.Reply
		call   func(ctx context.Context, c *cri.Client) error
		want   budget.Kind
		spared bool // a pod can cause it: the call fails, and the driver continues
	}{
		"sandboxes of nothing, to the limit of bytes": {"ListPodSandbox", lying.Wire(bytes.Repeat([]byte{0x0a, 0}, 4<<20-4)), list, budget.Items, false},
		"sandboxes of nothing, beyond it":             {"ListPodSandbox", lying.Wire(bytes.Repeat([]byte{0x0a, 0}, 8<<20-4)), list, budget.ReplyBytes, false},
		"a reply that its own side would not send": {"ListPodSandbox", func(func([]byte) error, <-chan struct{}) error {
			return status.Error(codes.ResourceExhausted, "too large")
		}, list, budget.ReplyBytes, false},
		"containers of nothing": {"ListContainers", lying.Wire(bytes.Repeat([]byte{0x0a, 0}, 1<<20)),
			func(ctx context.Context, c *cri.Client) error { _, err := c.ListContainers(ctx, nil); return err }, budget.Items, false},
		"images of nothing": {"ListImages", lying.Wire(bytes.Repeat([]byte{0x0a, 0}, 1<<20)),
			func(ctx context.Context, c *cri.Client) error { _, err := c.ListImages(ctx); return err }, budget.Items, true},
		"stats of nothing": {"ListContainerStats", lying.Wire(bytes.Repeat([]byte{0x0a, 0}, 1<<20)),
			func(ctx context.Context, c *cri.Client) error { _, err := c.ListContainerStats(ctx, ""); return err }, budget.Items, false},
		"one sandbox of half a million labels": {"ListPodSandbox", lying.Message(&runtimeapi.ListPodSandboxResponse{
			Items: []*runtimeapi.PodSandbox{{Labels: labels(500_000)}}}), list, budget.Memory, false},
		"an image of a million empty tags": {"ListImages", lying.Wire(nested(t, 0x12, 1<<20)),
			func(ctx context.Context, c *cri.Client) error { _, err := c.ListImages(ctx); return err }, budget.Memory, true},
		"a status of megabytes": {"ContainerStatus", lying.Message(&runtimeapi.ContainerStatusResponse{
			Status: &runtimeapi.ContainerStatus{Id: "c", Message: strings.Repeat("x", 2<<20)}}), container, budget.StatusBytes, true},
		"a status of a hundred thousand mounts": {"ContainerStatus", lying.Message(&runtimeapi.ContainerStatusResponse{
			Status: &runtimeapi.ContainerStatus{Id: "c", Mounts: make([]*runtimeapi.Mount, 200_000)}}), container, budget.Memory, true},
		"an image with a user of megabytes": {"ImageStatus", lying.Message(&runtimeapi.ImageStatusResponse{
			Image: &runtimeapi.Image{Id: "i", Username: strings.Repeat("x", 2<<20)}}),
			func(ctx context.Context, c *cri.Client) error {
				_, err := c.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: "i"})
				return err
			}, budget.StatusBytes, true},
		"statistics of megabytes": {"ListPodSandboxStats", lying.Wire(bytes.Repeat([]byte{0x0a, 0}, 8<<20-4)),
			func(ctx context.Context, c *cri.Client) error { _, err := c.ListPodSandboxStats(ctx); return err }, budget.ReplyBytes, true},
		"a sandbox status of megabytes": {"PodSandboxStatus", lying.Message(&runtimeapi.PodSandboxStatusResponse{
			Status: &runtimeapi.PodSandboxStatus{Id: "s", RuntimeHandler: strings.Repeat("x", 2<<20)}}),
			func(ctx context.Context, c *cri.Client) error { _, err := c.PodSandboxStatus(ctx, "s"); return err }, budget.StatusBytes, false},
	} {
		t.Run(name, func(t *testing.T) {
			runtimeThatLies, account := lying.New(), budget.New(budget.Limits{})
			runtimeThatLies.Answer(c.method, c.reply)
			client := connectLying(t, runtimeThatLies, account)
			before := allocated()
			err := c.call(t.Context(), client)
			took := allocated() - before
			var e *budget.ExceededError
			if !errors.As(err, &e) || e.Kind != c.want {
				t.Errorf("want an error of budget %s, got %v", c.want, err)
			}
			if (account.Err() == nil) != c.spared {
				t.Errorf("the account has %v", account.Err())
			}
			if !cri.IsTransport(err) {
				t.Errorf("the error says something of an object: %v", err)
			}
			// Both ends of the connection are in this process.
			if limit := uint64(80 << 20); took > limit {
				t.Errorf("the call allocated %d MiB", took>>20)
			}
		})
	}
}

// nested returns one item with n empty fields of this tag.
func nested(t *testing.T, tag byte, n int) []byte {
	inner := bytes.Repeat([]byte{tag, 0}, n)
	return append(protoLength(0x0a, len(inner)), inner...)
}

func protoLength(tag byte, n int) []byte {
	b := []byte{tag}
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// TestALargeHonestNodeIsWithinItsBudget: 500 pods, with the annotations and labels of a kubelet.
func TestALargeHonestNodeIsWithinItsBudget(t *testing.T) {
	r, account := lying.New(), budget.New(budget.Limits{})
	var pods runtimeapi.ListPodSandboxResponse
	var containers runtimeapi.ListContainersResponse
	meta := map[string]string{}
	for i := range 12 {
		meta["example.com/some-annotation-"+strconv.Itoa(i)] = strings.Repeat("v", 300)
	}
	for i := range 500 {
		pods.Items = append(pods.Items, &runtimeapi.PodSandbox{Id: strings.Repeat("a", 64), Metadata: &runtimeapi.PodSandboxMetadata{Name: strconv.Itoa(i)}, Labels: meta, Annotations: meta})
		for range 3 {
			containers.Containers = append(containers.Containers, &runtimeapi.Container{Id: strings.Repeat("b", 64), Image: &runtimeapi.ImageSpec{Image: "i"}, Labels: meta})
		}
	}
	r.Answer("ListPodSandbox", lying.Message(&pods))
	r.Answer("ListContainers", lying.Message(&containers))
	c := connectLying(t, r, account)
	if _, err := c.ListPodSandbox(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if all, err := c.ListContainers(t.Context(), nil); err != nil || len(all) != 1500 {
		t.Error(len(all), err)
	}
	for _, u := range account.Uses() {
		if u.Exceeded > 0 || u.HighWater > u.Limit*3/4 {
			t.Errorf("%+v", u)
		}
	}
}

// TestOutputOfACommandIsThePods: if a command prints endlessly, only its call fails; the host's
// budget is not exceeded.
func TestOutputOfACommandIsThePods(t *testing.T) {
	r, account := lying.New(), budget.New(budget.Limits{})
	r.Answer("ExecSync", lying.Message(&runtimeapi.ExecSyncResponse{Stdout: make([]byte, 8<<20)}))
	c := connectLying(t, r, account)
	if _, err := c.ExecSync(t.Context(), "c", []string{"yes"}, 0); err == nil || cri.IsTransport(err) || !strings.Contains(err.Error(), "printed more than") {
		t.Errorf("want a failure of the command, got %v", err)
	}
	if err := account.Err(); err != nil {
		t.Error(err)
	}
}

// TestOpenCallsAreCounted: a runtime that never answers cannot collect open calls without limit.
func TestOpenCallsAreCounted(t *testing.T) {
	r, account := lying.New(), budget.New(budget.Limits{OpenCalls: 3})
	r.Answer("StopPodSandbox", lying.Hang)
	c := connectLying(t, r, account)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 3)
	for range 3 {
		go func() { done <- c.StopPodSandbox(ctx, "s") }()
	}
	for r.Calls("StopPodSandbox") < 3 {
		runtime.Gosched()
	}
	_, err := c.Version(t.Context())
	var e *budget.ExceededError
	if !errors.As(err, &e) || e.Kind != budget.OpenCalls || !cri.IsUnsent(err) {
		t.Errorf("a fourth call: %v", err)
	}
	if account.Err() != nil {
		t.Error("a slow runtime was taken for a hostile one")
	}
	cancel()
	for range 3 {
		<-done
	}
	if _, err := c.Version(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestLargeRepliesTakeTurns: few replies that may be large are in progress at once, and none delays
// a health call.
func TestLargeRepliesTakeTurns(t *testing.T) {
	r, account := lying.New(), budget.New(budget.Limits{})
	r.Answer("ListContainers", lying.Hang)
	c := connectLying(t, r, account)
	list := func(n int) (end context.CancelFunc, done chan error) {
		ctx, end := context.WithCancel(t.Context())
		done = make(chan error, n)
		for range n {
			go func() { _, err := c.ListContainers(ctx, nil); done <- err }()
		}
		return end, done
	}
	endFirst, first := list(2)
	for r.Calls("ListContainers") < 2 {
		runtime.Gosched()
	}
	endRest, rest := list(8)
	if _, err := c.Version(t.Context()); err != nil {
		t.Error(err)
	}
	// The first two keep their places until the others have ended: contexts end one after another.
	endRest()
	for range cap(rest) {
		if err := <-rest; !cri.IsTransport(err) || !cri.IsUnsent(err) {
			t.Errorf("a list that waited for its turn: %v, want it kept back", err)
		}
	}
	endFirst()
	for range cap(first) {
		if err := <-first; !cri.IsTransport(err) || cri.IsUnsent(err) {
			t.Errorf("a list that was given up: %v, want it sent", err)
		}
	}
	if n := r.Calls("ListContainers"); n != 2 || account.Err() != nil {
		t.Errorf("%d lists reached the runtime (%v), want 2", n, account.Err())
	}
}

// TestGivenUpIsNotSent: a call whose context has ended is kept back, although places are free.
func TestGivenUpIsNotSent(t *testing.T) {
	r := lying.New()
	c := connectLying(t, r, budget.New(budget.Limits{}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		if _, err := c.ListContainers(ctx, nil); !cri.IsUnsent(err) {
			t.Fatalf("%v, want it kept back", err)
		}
	}
	if n := r.Calls("ListContainers"); n != 0 {
		t.Errorf("%d lists reached the runtime, want none", n)
	}
}

// TestAListOfOnePodIsSmall: the list of one pod has the small budget, whatever the runtime returns.
func TestAListOfOnePodIsSmall(t *testing.T) {
	r, account := lying.New(), budget.New(budget.Limits{})
	r.Answer("ListPodSandbox", lying.Message(&runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: strings.Repeat("x", 2<<20)}}}))
	c := connectLying(t, r, account)
	if _, err := c.ListPodSandbox(t.Context(), nil); err != nil {
		t.Error(err)
	}
	_, err := c.ListPodSandbox(t.Context(), &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{pod.LabelPodUID: "u"}})
	var e *budget.ExceededError
	if !errors.As(err, &e) || e.Kind != budget.StatusBytes {
		t.Error(err)
	}
}
