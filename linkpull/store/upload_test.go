package store

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	contentapi "github.com/containerd/containerd/api/services/content/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/linkpull/oci"
	"github.com/bowline-k8s/bowline/linkpull/store/storetest"
)

// TestCutAtEachMessage cuts the stream of a layer at each message, and checks that no acknowledged byte is
// sent again.
func TestCutAtEachMessage(t *testing.T) {
	i, layers := imageOf(t, 12*small, 1)
	for at := range 15 {
		c := storetest.New()
		var n atomic.Int32
		c.Before = func(method string) error {
			if method == "Write" && int(n.Add(1)) == at+1 {
				return status.Error(codes.Unavailable, "transport is closing")
			}
			return nil
		}
		s := newStore(t, c.Connect(t).Containerd(), nil)
		source := &recorded{Source: layers}
		_, err := s.Write(t.Context(), Image{Image: i, Names: []string{name}, Source: source})
		testutil.Must(t, err)
		whole(t, c, i, name)
		if got := c.State().Received; got != i.Size() {
			t.Errorf("cut at message %d: %d bytes were received, want %d", at, got, i.Size())
		}
	}
}

// cutting closes a connection when a number of bytes has been written to it.
type cutting struct {
	net.Conn
	left *atomic.Int64
}

func (c cutting) Write(p []byte) (int, error) {
	if c.left.Add(-int64(len(p))) < 0 {
		_ = c.Conn.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

// TestCutConnection cuts the connection itself, several times in one layer.
func TestCutConnection(t *testing.T) {
	i, layers := imageOf(t, 200*small, 1)
	c := storetest.New()
	c.Wrap = func(conn net.Conn) net.Conn {
		left := new(atomic.Int64)
		left.Store(75 * small)
		return cutting{conn, left}
	}
	// gRPC connects again after 100 ms at least.
	s := newStore(t, c.Connect(t).Containerd(), func(c *Config) { c.Pause = 20 * time.Millisecond })
	source := &recorded{Source: layers}
	_, err := s.Write(t.Context(), Image{Image: i, Names: []string{name}, Source: source})
	testutil.Must(t, err)
	whole(t, c, i, name)
	if len(source.offsets) < 3 || !slices.IsSorted(source.offsets) {
		t.Errorf("the layer was opened at %v", source.offsets)
	}
	if got := c.State().Received; got > i.Size()+int64(len(source.offsets))*window*small {
		t.Errorf("%d bytes were received for %d", got, i.Size())
	}
}

// TestAnotherProcessContinues: it has not seen the first part, so only the commit can check it.
func TestAnotherProcessContinues(t *testing.T) {
	i, layers := imageOf(t, 8*small, 1)
	for _, damaged := range []bool{false, true} {
		c := storetest.New()
		ctx, cancel := context.WithCancel(t.Context())
		damage := damaged
		c.Altered = func(offset int64, data []byte) []byte {
			if offset == 0 && damage && len(data) == small {
				data[0] ^= 1
				damage = false
			}
			if offset == 3*small {
				cancel()
			}
			return data
		}
		client := c.Connect(t)
		if _, err := newStore(t, client.Containerd(), nil).Write(ctx, Image{Image: i, Source: layers}); !errors.Is(err,
			context.Canceled) {
			t.Fatal(err)
		}
		ref := "bowline-" + string(i.Layers[0].Digest)
		testutil.Eventually(t, "containerd has a part of the layer",
			func() bool { return c.State().Ingests[ref] > 3*small })
		second := &recorded{Source: layers}
		_, err := newStore(t, client.Containerd(), func(c *Config) { c.Pause = 20 * time.Millisecond }).
			Write(t.Context(), Image{Image: i, Names: []string{name}, Source: second})
		testutil.Must(t, err)
		whole(t, c, i, name)
		if at := second.offsets; at[0] == 0 || damaged && !slices.Equal(at[1:], []int64{0}) || !damaged && len(at) != 1 {
			t.Errorf("damaged %v: opened at %v", damaged, at)
		}
	}
}

// TestDamagedForGood: a host whose disk alters what it stores does not keep Write busy.
func TestDamagedForGood(t *testing.T) {
	i, layers := imageOf(t, 3*small, 1)
	c := storetest.New()
	c.Altered = func(_ int64, data []byte) []byte { data[0] ^= 1; return data }
	_, err := newStore(t, c.Connect(t).Containerd(), nil).Write(t.Context(), Image{Image: i, Source: layers})
	if !errors.Is(err, errDamaged) || status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
	if s := c.State(); len(s.Leases)+len(s.Ingests) > 0 {
		t.Errorf("left: %v, %v", s.Leases, s.Ingests)
	}
}

// TestWrongSource: bytes that are not the layer's never become one, and nothing of them stays.
func TestWrongSource(t *testing.T) {
	i, layers := imageOf(t, 3*small, 1)
	d := i.Layers[0]
	data := layers[d.Digest]
	other := slices.Clone(data)
	other[len(other)/2] ^= 1
	for what, source := range map[string]Source{
		"other bytes": Memory{d.Digest: other},
		"fewer bytes": Memory{d.Digest: data[:len(data)-1]},
		"none":        Memory{d.Digest: nil},
		"more bytes":  Memory{d.Digest: append(slices.Clone(data), 0)},
		"endless":     endless{Memory{d.Digest: data}},
	} {
		c := storetest.New()
		_, err := newStore(t, c.Connect(t).Containerd(), nil).Write(t.Context(), Image{Image: i, Names: []string{name},
			Source: source})
		if !errors.Is(err, oci.ErrMismatch) {
			t.Errorf("%s: %v", what, err)
		}
		c.Collect()
		if s := c.State(); len(s.Leases)+len(s.Ingests)+len(s.Blobs)+len(s.Images) > 0 {
			t.Errorf("%s leaves %+v", what, s)
		}
	}
}

type endless struct{ Memory }

func (e endless) Open(ctx context.Context, d oci.Descriptor, offset int64) (io.ReadCloser, error) {
	body, err := e.Memory.Open(ctx, d, offset)
	return io.NopCloser(io.MultiReader(body, zeros{})), err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestSourceFails: a source that fails now and then is opened again where it was; one that fails for good, or
// all the time, ends Write with its error.
func TestSourceFails(t *testing.T) {
	i, layers := imageOf(t, 20*small, 1)
	c := storetest.New()
	now := &recorded{Source: layers}
	reads := 0
	now.read = func(int) error {
		if reads++; reads%4 == 0 {
			return passing(true)
		}
		return nil
	}
	_, err := newStore(t, c.Connect(t).Containerd(), nil).Write(t.Context(), Image{Image: i, Names: []string{name},
		Source: now})
	testutil.Must(t, err)
	whole(t, c, i, name)
	if len(now.offsets) < 4 || !slices.IsSorted(now.offsets) {
		t.Errorf("opened at %v", now.offsets)
	}
	for _, temporary := range []bool{true, false} {
		c := storetest.New()
		source := &recorded{Source: layers, opened: func(oci.Descriptor, int64) error { return passing(temporary) }}
		_, err := newStore(t, c.Connect(t).Containerd(), nil).Write(t.Context(), Image{Image: i, Names: []string{name},
			Source: source})
		want := map[bool]int{true: tries, false: 1}[temporary]
		if !errors.Is(err, passing(temporary)) || len(source.offsets) != want {
			t.Errorf("temporary %v: %v after %d attempts, want %d", temporary, err, len(source.offsets), want)
		}
		if leases := c.State().Leases; (len(leases) == 1) != temporary {
			t.Errorf("temporary %v: the leases are %v", temporary, leases)
		}
	}
}

func TestChunk(t *testing.T) {
	for _, c := range []struct {
		limit *rate.Limiter
		want  int64
	}{
		{nil, maxChunk}, {NewRate(0), maxChunk}, {NewRate(1 << 40), maxChunk}, {NewRate(4 << 20), 512 << 10},
		{NewRate(1), minChunk},
		{rate.NewLimiter(rate.Inf, 100), 100},
	} {
		if got := chunk(c.limit); got != c.want {
			t.Errorf("%+v: %d, want %d", c.limit, got, c.want)
		}
	}
}

// script is a content service whose streams answer as a test says.
type script struct {
	contentapi.ContentClient
	answer func(r *contentapi.WriteContentRequest) (*contentapi.WriteContentResponse, error) // nil, nil: none
	opened int
}

func (s *script) Write(ctx context.Context, _ ...grpc.CallOption) (contentapi.Content_WriteClient, error) {
	s.opened++
	return &scriptStream{script: s, ctx: ctx, replies: make(chan *contentapi.WriteContentResponse, 100),
		failed: make(chan error, 1)}, nil
}

func (s *script) Abort(context.Context, *contentapi.AbortRequest, ...grpc.CallOption) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

type scriptStream struct {
	contentapi.Content_WriteClient
	*script
	ctx     context.Context
	replies chan *contentapi.WriteContentResponse
	failed  chan error
}

func (s *scriptStream) Send(r *contentapi.WriteContentRequest) error {
	reply, err := s.answer(r)
	if err != nil {
		s.failed <- err
	} else if reply != nil {
		s.replies <- reply
	}
	return nil
}

func (s *scriptStream) Recv() (*contentapi.WriteContentResponse, error) {
	select {
	case r := <-s.replies:
		return r, nil
	case err := <-s.failed:
		return nil, err
	case <-s.ctx.Done():
		return nil, status.FromContextError(s.ctx.Err()).Err()
	}
}

func stat(r *contentapi.WriteContentRequest) *contentapi.WriteContentResponse {
	return &contentapi.WriteContentResponse{Action: r.Action, Offset: r.Offset + int64(len(r.Data)),
		Digest: r.Expected}
}

// TestStalls: a stream that is not answered ends after its time, and one that is slow at the source does not.
func TestStalls(t *testing.T) {
	data := make([]byte, 2*small)
	b := blob{Descriptor: oci.Describe(oci.LayerGzipType, data)}
	for _, c := range []struct {
		what   string
		silent contentapi.WriteAction // is not answered
		slow   time.Duration          // each read of the source takes as long
		want   error
		took   time.Duration
	}{
		{"no answer to the first message", contentapi.WriteAction_STAT, 0, errStalled, tries * openTime},
		{"no acknowledgement", contentapi.WriteAction_WRITE, 0, errStalled, tries * ackTime},
		{"no commit", contentapi.WriteAction_COMMIT, 0, errStalled, tries * ackTime},
		{"slow source", -1, 3 * ackTime, nil, 6 * ackTime},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newStore(t, (*grpc.ClientConn)(nil), func(c *Config) { c.Now = time.Now })
			content := &script{answer: func(r *contentapi.WriteContentRequest) (*contentapi.WriteContentResponse, error) {
				if r.Action == c.silent {
					return nil, nil
				}
				return stat(r), nil
			}}
			s.content = content
			source := &recorded{Source: Memory{b.Digest: data}, read: func(int) error { time.Sleep(c.slow); return nil }}
			began := time.Now()
			err := s.put(t.Context(), b, source, newProgress(b.Size, nil))
			if took := time.Since(began); !errors.Is(err, c.want) || took < c.took || took > c.took+time.Minute {
				t.Errorf("%s: %v after %v; want %v after %v", c.what, err, took, c.want, c.took)
			}
		})
	}
}

const stated, committed = contentapi.WriteAction_STAT, contentapi.WriteAction_COMMIT

// TestProtocol: answers that containerd does not give end the write.
func TestProtocol(t *testing.T) {
	data := make([]byte, 2*small)
	b := blob{Descriptor: oci.Describe(oci.LayerGzipType, data)}
	for what, change := range map[string]func(r *contentapi.WriteContentResponse){
		"offset that is not reached": func(r *contentapi.WriteContentResponse) { r.Offset = 3 * small },
		"offset that goes back":      func(r *contentapi.WriteContentResponse) { r.Offset = 0 },
		"negative offset":            func(r *contentapi.WriteContentResponse) { r.Offset = -1 },
		"answer to another message":  func(r *contentapi.WriteContentResponse) { r.Action = stated },
		"commit without one":         func(r *contentapi.WriteContentResponse) { r.Action, r.Digest = committed, "" },
		"commit of another digest":   func(r *contentapi.WriteContentResponse) { r.Digest = string(oci.Sum(nil)) },
	} {
		s := newStore(t, (*grpc.ClientConn)(nil), nil)
		s.content = &script{answer: func(r *contentapi.WriteContentRequest) (*contentapi.WriteContentResponse, error) {
			reply := stat(r)
			commit := what == "commit of another digest"
			if r.Action != contentapi.WriteAction_STAT && (r.Action == contentapi.WriteAction_COMMIT) == commit {
				change(reply)
			}
			return reply, nil
		}}
		if err := s.put(t.Context(), b, Memory{b.Digest: data}, newProgress(b.Size, nil)); !errors.Is(err, errProtocol) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestWindow: messages are sent without waiting for each answer, but no more than the window.
func TestWindow(t *testing.T) {
	data := make([]byte, 3*window*small)
	b := blob{Descriptor: oci.Describe(oci.LayerGzipType, data)}
	synctest.Test(t, func(t *testing.T) {
		const roundTrip = 50 * time.Millisecond
		s := newStore(t, (*grpc.ClientConn)(nil), func(c *Config) { c.Now = time.Now })
		var mu sync.Mutex
		waiting, most := 0, 0
		content := &script{}
		content.answer = func(r *contentapi.WriteContentRequest) (*contentapi.WriteContentResponse,
			error) {
			return stat(r), nil
		}
		s.content = &delayed{script: content, by: roundTrip, sent: func(n int) {
			mu.Lock()
			defer mu.Unlock()
			waiting += n
			most = max(most, waiting)
		}}
		began := time.Now()
		testutil.Must(t, s.put(t.Context(), b, Memory{b.Digest: data}, newProgress(b.Size, nil)))
		// One round trip for the first message, one for each window, and one for the commit.
		if took := time.Since(began); took > 5*roundTrip+time.Millisecond || most != window {
			t.Errorf("it took %v with %d messages under way, want 5 round trips with %d", took, most, window)
		}
	})
}

// delayed answers after a round trip.
type delayed struct {
	*script
	by   time.Duration
	sent func(n int)
}

func (d *delayed) Write(ctx context.Context, opts ...grpc.CallOption) (contentapi.Content_WriteClient, error) {
	s, err := d.script.Write(ctx, opts...)
	return &delayedStream{Content_WriteClient: s, delayed: d, due: make(chan time.Time, 100)}, err
}

type delayedStream struct {
	contentapi.Content_WriteClient
	*delayed
	due chan time.Time
}

func (s *delayedStream) Send(r *contentapi.WriteContentRequest) error {
	s.sent(1)
	s.due <- time.Now().Add(s.by)
	return s.Content_WriteClient.Send(r)
}

func (s *delayedStream) Recv() (*contentapi.WriteContentResponse, error) {
	r, err := s.Content_WriteClient.Recv()
	if err == nil {
		time.Sleep(time.Until(<-s.due))
		s.sent(-1)
	}
	return r, err
}
