// Package testutil has what tests of many packages need.
package testutil

import "testing"

// Must fails the test if err is not nil.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
