package syncloop

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestResolvReads: sandboxes that are made at the same time share reads of resolv.conf, and each
// gets what a read found that began after its call.
func TestResolvReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		r := &resolvReads{read: func(context.Context) ([]byte, error) {
			reads++
			began := time.Now().UnixNano()
			time.Sleep(100 * time.Millisecond)
			return strconv.AppendInt(nil, began, 10), nil
		}}
		var asked sync.WaitGroup
		for i := range 50 {
			asked.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				called := time.Now().UnixNano()
				data, err := r.get(t.Context())
				began, _ := strconv.ParseInt(string(data), 10, 64)
				if err != nil || began < called {
					t.Errorf("call at %d got a read of %d, error %v", called, began, err)
				}
			})
		}
		asked.Wait()
		if reads != 2 {
			t.Errorf("%d reads for 50 calls within 50 ms, want 2", reads)
		}
	})
}

// TestResolvReadsEnd: a caller that gives up leaves the read to the others. A read that all its
// callers have given up is cut short, or does not begin.
func TestResolvReadsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended []error
		r := &resolvReads{read: func(ctx context.Context) ([]byte, error) {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			ended = append(ended, ctx.Err())
			return []byte("nameserver"), ctx.Err()
		}}
		gives, cancel := context.WithCancel(t.Context())
		var asked sync.WaitGroup
		get := func(ctx context.Context, want error) {
			asked.Go(func() {
				if data, err := r.get(ctx); !errors.Is(err, want) || err == nil && string(data) != "nameserver" {
					t.Errorf("got %q, %v, want %v", data, err, want)
				}
			})
			synctest.Wait()
		}
		get(gives, context.Canceled) // alone: its read is cut short
		get(gives, context.Canceled) // with the next one
		get(t.Context(), nil)
		cancel()
		asked.Wait()
		later, cancel := context.WithCancel(t.Context())
		get(t.Context(), nil)
		get(later, context.Canceled) // alone: its read does not begin
		cancel()
		asked.Wait()
		synctest.Wait()
		if len(ended) != 3 || ended[0] == nil || ended[1] != nil || ended[2] != nil {
			t.Errorf("the reads ended with %v, want one that is canceled and two that are not", ended)
		}
	})
}

// TestResolvReadFails: a failure is that of the callers that share the read.
func TestResolvReadFails(t *testing.T) {
	failed := errors.New("failed")
	r := &resolvReads{read: func(context.Context) ([]byte, error) { return nil, failed }}
	if _, err := r.get(t.Context()); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	r.read = func(context.Context) ([]byte, error) { return []byte("nameserver"), nil }
	if data, err := r.get(t.Context()); err != nil || string(data) != "nameserver" {
		t.Errorf("the next caller got %q, %v", data, err)
	}
}
