package main

import "testing"

func TestSizes(t *testing.T) {
	for s, want := range map[string]int64{"5": 5, "2k": 2048, "3M": 3 << 20, "1Gi": 1 << 30} {
		if got, err := bytesOf(s); err != nil || got != want {
			t.Errorf("bytesOf(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
}
