package mux

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/lifeline/wire"
)

// overSocket makes a session over a unix socket.
func overSocket(b *testing.B, cfg Config) (exit, helper *Session) {
	path := filepath.Join(b.TempDir(), "s")
	l, err := net.Listen("unix", path)
	testutil.Must(b, err)
	sessions := make(chan *Session)
	s, err := NewServer(cfg, l, func(ctx context.Context, s *Session) {
		sessions <- s
		<-ctx.Done()
	})
	testutil.Must(b, err)
	stop := testutil.Go(context.Background(), s.Run)
	exit, err = Client(cfg, func(ctx context.Context, _ int) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	})
	testutil.Must(b, err)
	stopExit := testutil.Go(context.Background(), exit.Run)
	b.Cleanup(func() { stopExit(); stop() })
	return exit, <-sessions
}

// BenchmarkThroughput moves bytes over streams at a time, through one or four pipes.
func BenchmarkThroughput(b *testing.B) {
	for _, c := range []struct{ pipes, streams int }{{1, 1}, {1, 16}, {4, 1}, {4, 16}} {
		b.Run(fmt.Sprintf("pipes=%d/streams=%d", c.pipes, c.streams), func(b *testing.B) {
			exit, helper := overSocket(b, Config{Pipes: c.pipes})
			const block = 1 << 20
			b.SetBytes(block)
			var all sync.WaitGroup
			for i := range c.streams {
				from, to := open(b, helper, exit, i)
				blocks := b.N/c.streams + min(1, b.N%c.streams)
				all.Go(func() {
					buf := make([]byte, 32<<10)
					for range blocks * block / len(buf) {
						if _, err := from.Write(buf); err != nil {
							b.Error(err)
							return
						}
					}
					from.CloseWrite()
				})
				all.Go(func() {
					io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{to}, make([]byte, 32<<10))
					to.Close()
				})
			}
			all.Wait()
		})
	}
}

// BenchmarkRequest asks and answers 1 KiB on a new stream.
func BenchmarkRequest(b *testing.B) {
	exit, helper := overSocket(b, Config{})
	go func() {
		for {
			st, err := exit.Accept(context.Background())
			if err != nil {
				return
			}
			go func() {
				defer st.Close()
				io.Copy(st, st)
			}()
		}
	}()
	buf := make([]byte, 1<<10)
	for i := range b.N {
		st, err := helper.Open(b.Context(), flow(i))
		testutil.Must(b, err)
		_, err = st.Write(buf)
		testutil.Must(b, err)
		st.CloseWrite()
		if n, err := io.ReadFull(st, buf); err != nil {
			b.Fatalf("after %d bytes: %v", n, err)
		}
		st.Close()
	}
}

// BenchmarkIdle reports the memory of one end of an idle session, and of one with 1,000 idle streams.
func BenchmarkIdle(b *testing.B) {
	used := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	for range b.N {
		before := used()
		exit, helper := overSocket(b, Config{})
		var kept []wire.Stream
		first, second := open(b, helper, exit, 0)
		first.Close()
		second.Close()
		testutil.Eventually(b, "all pipes are attached", func() bool { return exit.Stats().Attached == 5 })
		b.ReportMetric(float64(used()-before)/2/1024, "KiB/end")
		for i := range 1000 {
			first, second := open(b, helper, exit, i)
			kept = append(kept, first, second)
		}
		b.ReportMetric(float64(used()-before)/2/1024, "KiB/end-with-1000")
		runtime.KeepAlive(kept)
	}
}
