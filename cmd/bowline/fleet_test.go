package main

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/config"
)

func twoHosts() []config.Host { return []config.Host{{Name: "good"}, {Name: "bad"}} }

// A host that fails is tried again, ever later, and the other one never notices.
func TestOneHostFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		var tries []time.Duration
		var driven atomic.Int32
		done := make(chan error, 1)
		go func() {
			done <- driveAll(ctx, twoHosts(), func(ctx context.Context, h *config.Host) error {
				if h.Name == "bad" {
					tries = append(tries, time.Since(began))
					return errors.New("no runtime")
				}
				driven.Add(1)
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		time.Sleep(4 * time.Minute)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("told to stop, it says %v", err)
		}
		if driven.Load() != 1 {
			t.Errorf("the good host was started %d times", driven.Load())
		}
		want := []time.Duration{0, 5, 15, 35, 75, 135, 195}
		if len(tries) != len(want) {
			t.Fatalf("the bad host was tried at %v, want seconds %v", tries, want)
		}
		for i := range want {
			if tries[i] != want[i]*time.Second {
				t.Errorf("try %d at %v, want %d s", i, tries[i], want[i])
			}
		}
	})
}

// When no host is left the process ends, with the reason of each.
func TestAllHostsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := driveAll(t.Context(), twoHosts(), func(ctx context.Context, h *config.Host) error {
			if h.Name == "good" {
				time.Sleep(7 * time.Second)
			}
			return errors.New("no " + h.Name + " runtime")
		})
		if err == nil || len(each(err)) != 2 {
			t.Fatalf("the end is %v", err)
		}
		for i, want := range []string{"host good: no good runtime", "host bad: no bad runtime"} {
			if each(err)[i].Error() != want {
				t.Errorf("reason %d is %q, want %q", i, each(err)[i], want)
			}
		}
		if took := time.Since(began); took != 7*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestOneHostAlone(t *testing.T) {
	for name, fails := range map[string]error{"with a cause": errors.New("x"), "by itself": nil} {
		err := driveAll(t.Context(), []config.Host{{Name: "a"}}, func(context.Context, *config.Host) error { return fails })
		if err == nil || !strings.HasPrefix(err.Error(), "host a: ") || len(each(err)) != 1 {
			t.Errorf("a host that ended %s: %v", name, err)
		}
	}
}
