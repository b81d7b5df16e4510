package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/host"
)

// A pod that is deleted while its image is pulled leaves the image to whoever brings it
// to the machine by other means.
func TestCancelledPullLeavesNoIntent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &files{}
		r := &registry{present: map[string]bool{}, took: time.Hour}
		m, _ := manager(t, r, Config{Files: f, RecordPath: "/records"})
		ctx, deleted := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := m.Ensure(ctx, aPod("1"), container(private, v1.PullIfNotPresent), nil)
			done <- err
		}()
		synctest.Wait()
		if !strings.Contains(string(f.data), `"intents"`) {
			t.Fatalf("no pull is under way: %s", f.data)
		}
		deleted()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if strings.Contains(string(f.data), `"intents"`) {
			t.Errorf("the intent stays: %s", f.data)
		}
		r.mu.Lock()
		r.present[private] = true
		r.mu.Unlock()
		if result, err := m.Ensure(t.Context(), aPod("2"), container(private, v1.PullNever), nil); err != nil || result.Pulled {
			t.Errorf("an image that was loaded by hand: %+v, %v", result, err)
		}
	})
}

// An intent of a process that died goes when the image turns out not to be there.
func TestIntentOfADeadProcess(t *testing.T) {
	for name, there := range map[string]bool{"image is there": true, "image is not there": false} {
		f := &files{data: fmt.Appendf(nil, `{"salt":"s","intents":{%q:3}}`, private)}
		r := &registry{present: map[string]bool{private: there}}
		m, _ := manager(t, r, Config{Files: f, RecordPath: "/records"})
		if _, err := m.Ensure(t.Context(), aPod("1"), container(private, v1.PullNever), nil); err == nil {
			t.Errorf("%s: a pod uses it", name)
		}
		if got := strings.Contains(string(f.data), `"intents"`); got != there {
			t.Errorf("%s: recorded is %s", name, f.data)
		}
	}
}

// A record that grew beyond all use, or that is too large to read, lets nobody in.
func TestRecordsAreBounded(t *testing.T) {
	many := recordFile{Intents: map[string]int{}}
	for i := range maxIntents + 1 {
		many.Intents[fmt.Sprint("registry.example/ci:", i)] = 1
	}
	data, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]*files{"intents": {data: data}, "size": {err: host.ErrTooLarge}} {
		r := newRecords(f, "/r")
		_ = r.locked(t.Context(), func(file *recordFile) bool {
			if !file.Lost || len(file.Intents) > 0 {
				t.Errorf("%s: lost %v, %d intents", name, file.Lost, len(file.Intents))
			}
			return false
		})
	}
}

// The record of a newer Bowline lets nobody in, and stays as it is.
func TestNewerRecords(t *testing.T) {
	const newer = `{"schemaVersion":2,"images":{},"more":true}`
	f := &files{data: []byte(newer)}
	r := &registry{present: map[string]bool{private: true}}
	m, _ := manager(t, r, Config{Files: f, RecordPath: "/records"})
	if _, err := m.Ensure(t.Context(), aPod("1"), container(private, v1.PullNever), nil); err == nil {
		t.Error("a pod uses an image though it is not known who may")
	}
	if _, err := m.Ensure(t.Context(), aPod("2"), container(private, v1.PullAlways), nil); err != nil {
		t.Errorf("it is not pulled: %v", err)
	}
	if string(f.data) != newer || f.damaged != nil {
		t.Errorf("the file was changed: %s", f.data)
	}
}
