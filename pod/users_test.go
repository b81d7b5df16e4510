package pod

import (
	"testing"

	"github.com/bowline-k8s/bowline/test/corpus"
)

func TestParseUsers(t *testing.T) {
	for value, want := range map[string]IDRange{
		"65536:65536":      {65536, 65536},
		"0:1":              {0, 1},
		"4294901760:65536": {4294901760, 65536},
	} {
		if r, ok := ParseUsers(value); !ok || r == nil || *r != want {
			t.Errorf("%q: %v, %t", value, r, ok)
		}
	}
	if r, ok := ParseUsers((*IDRange)(nil).String()); !ok || r != nil {
		t.Errorf("no user namespace: %v, %t", r, ok)
	}
	for _, value := range []string{"", "65536", ":", "65536:0", "-1:5", "4294967296:1", "4294967295:2", "1:2:3", "1: 2", "Host"} {
		if r, ok := ParseUsers(value); ok || r != nil {
			t.Errorf("%q: %v, %t", value, r, ok)
		}
	}
}

// FuzzUsers: a range that is accepted survives the round trip, and lies within the host's IDs.
func FuzzUsers(f *testing.F) {
	for _, value := range []string{"host", "65536:65536", "4294901760:65536", "4294967295:2", "1:2:3"} {
		f.Add(value)
	}
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, value string) {
		r, ok := ParseUsers(value)
		if !ok {
			if r != nil {
				t.Errorf("%q: refused, and %v", value, r)
			}
			return
		}
		again, ok := ParseUsers(r.String())
		if !ok || (r == nil) != (again == nil) || r != nil && *r != *again {
			t.Errorf("%q: %v, then %v", value, r, again)
		}
		if r != nil && uint64(r.HostID)+uint64(r.Length) > 1<<32 {
			t.Errorf("%q: the range %v ends after the last ID", value, r)
		}
	})
}
