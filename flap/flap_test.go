package flap

import (
	"testing"
	"time"
)

// TestBound: of something that goes each second, five times are announced, then one each ten minutes. That
// it is back is announced whenever its going was.
func TestBound(t *testing.T) {
	var b Bound
	if b.Back() {
		t.Error("it has not gone, and is back")
	}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	began, told := at, []time.Duration{}
	for ; at.Sub(began) < time.Hour; at = at.Add(time.Second) {
		gone := b.Gone(at)
		if gone {
			told = append(told, at.Sub(began))
		}
		if b.Back() != gone {
			t.Fatalf("after %v: gone %v, back %v", at.Sub(began), gone, b.Back())
		}
	}
	want := []time.Duration{0, 1 * time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute, 40 * time.Minute, 50 * time.Minute}
	if len(told) != len(want) {
		t.Fatalf("announced after %v, want %v", told, want)
	}
	for i := range want {
		if told[i] != want[i] {
			t.Errorf("announced after %v, want %v", told, want)
		}
	}
	// After a quiet day, it is announced at once again, as often as at first.
	at, told = at.Add(24*time.Hour), nil
	for range 10 {
		if at = at.Add(time.Second); b.Gone(at) {
			told = append(told, 0)
		}
	}
	if len(told) != atOnce {
		t.Errorf("announced %d times after a quiet day", len(told))
	}
}
