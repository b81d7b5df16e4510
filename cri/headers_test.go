package cri_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/lying"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// heads is a runtime that answers Version, and begins every other reply with headers of a given
// size but never finishes it. A gRPC server would respect its client's header limit.
type heads struct {
	size int
	sent atomic.Int64 // replies that have begun
}

func (h *heads) serve(c net.Conn) error {
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
		return err
	}
	framer := http2.NewFramer(c, c)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 10_000}); err != nil {
		return err
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	headers := func(stream uint32, end bool, fields ...string) error {
		block.Reset()
		for i := 0; i < len(fields); i += 2 {
			if err := encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1], Sensitive: true}); err != nil {
				return err
			}
		}
		for first := true; first || block.Len() > 0; first = false {
			part := block.Next(16 << 10)
			var err error
			if last := block.Len() == 0; first {
				err = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: part, EndHeaders: last, EndStream: end})
			} else {
				err = framer.WriteContinuation(stream, last, part)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	version, err := proto.Marshal(&runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "heads", RuntimeVersion: "1", RuntimeApiVersion: "v1"})
	if err != nil {
		return err
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return err
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = framer.WritePing(true, f.Data)
			}
		case *http2.MetaHeadersFrame:
			if strings.HasSuffix(f.PseudoValue("path"), "/Version") {
				message := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(version))), version...)
				err = headers(f.StreamID, false, ":status", "200", "content-type", "application/grpc")
				if err == nil {
					err = framer.WriteData(f.StreamID, false, message)
				}
				if err == nil {
					err = headers(f.StreamID, true, "grpc-status", "0")
				}
				break
			}
			fields := []string{":status", "200", "content-type", "application/grpc"}
			for i := 0; i*1024 < h.size; i++ {
				fields = append(fields, fmt.Sprintf("a%d", i), strings.Repeat("x", 1000))
			}
			err = headers(f.StreamID, false, fields...)
			h.sent.Add(1)
		}
		if err != nil {
			return err
		}
	}
}

// TestHeadersOfRepliesAreBounded: many calls whose replies begin but never end hold little memory.
func TestHeadersOfRepliesAreBounded(t *testing.T) {
	const calls = 256 // a quarter of the budget
	for _, size := range []int{12 << 10, 250 << 10} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", path)
			testutil.Must(t, err)
			defer l.Close()
			h := &heads{size: size}
			testutil.Serve(t, l, func(c net.Conn) { _ = h.serve(c) })
			account := budget.New(budget.Limits{})
			c, err := cri.Connect(t.Context(), cri.Config{Dial: dialUnix(path), Budget: account})
			testutil.Must(t, err)
			defer c.Close()
			before := heap()
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			var refused atomic.Int64
			for range calls {
				all.Go(func() {
					_ = c.StopPodSandbox(ctx, "s")
					refused.Add(1)
				})
			}
			// Much too large headers end the connection and all its calls.
			for h.sent.Load() < calls && refused.Load() < calls {
				runtime.Gosched()
			}
			// If the connection survives, the answer to this call arrives after all the others.
			for {
				if _, err := c.Version(t.Context()); err == nil {
					break
				} else if !cri.IsTransport(err) {
					t.Fatal(err)
				}
			}
			if cost := heap() - before; cost > 16<<20 {
				t.Errorf("%d calls hold %d MiB, want at most 16", calls, cost>>20)
			}
			if err := account.Err(); err != nil {
				t.Errorf("the host has exceeded %v", err)
			}
			cancel()
			all.Wait()
		})
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestErrorTextsOfTheRuntime: an error text of usual length is kept in full; of a longer one, the
// beginning and the end. A much too long one fails only the call, not the host: it may contain a
// pod's command.
func TestErrorTextsOfTheRuntime(t *testing.T) {
	for size, want := range map[int][]string{
		1 << 10:  {"begin " + strings.Repeat("x", 1<<10) + " end"},
		8 << 10:  {"begin xx", "bytes left out", "xx end"},
		64 << 10: {"16384 bytes"},
	} {
		r, account := lying.New(), budget.New(budget.Limits{})
		r.Answer("StartContainer", func(func([]byte) error, <-chan struct{}) error {
			return status.Error(codes.NotFound, "begin "+strings.Repeat("x", size)+" end")
		})
		c := connectLying(t, r, account)
		err := c.StartContainer(t.Context(), "c")
		if err == nil || cri.IsTransport(err) || cri.IsNotFound(err) != (size < 64<<10) {
			t.Fatalf("%d bytes: %.300v", size, err)
		}
		for _, text := range want {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%d bytes: %.300v, want %.100q", size, err, text)
			}
		}
		if n := len(err.Error()); n > budget.MaxText+100 {
			t.Errorf("%d bytes: the error has %d", size, n)
		}
		if account.Err() != nil {
			t.Errorf("%d bytes: the host has exceeded %v", size, account.Err())
		}
	}
}

// TestATakenNameIsSeenInALongSentence: classify sees the text before it is shortened.
func TestATakenNameIsSeenInALongSentence(t *testing.T) {
	r := lying.New()
	r.Answer("CreateContainer", func(func([]byte) error, <-chan struct{}) error {
		return status.Error(codes.Unknown, strings.Repeat("x", 4<<10)+" is reserved for "+strings.Repeat("x", 4<<10))
	})
	c := connectLying(t, r, nil)
	if _, err := c.CreateContainer(t.Context(), "s", &runtimeapi.ContainerConfig{}, nil); !cri.IsExists(err) {
		t.Errorf("%.300v", err)
	}
}
