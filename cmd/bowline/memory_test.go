package main

import "testing"

func TestReadOnlyMapping(t *testing.T) {
	const file = "/opt/my programs/bowline"
	for line, want := range map[string]uintptr{
		"00400000-01fc2000 r-xp 00000000 fe:01 1234 /opt/my programs/bowline": 0x1bc2000,
		"01fc2000-04227000 r--p 01bc2000 fe:01 1234 /opt/my programs/bowline": 0x2265000,
		"04227000-04292000 rw-p 03e27000 fe:01 1234 /opt/my programs/bowline": 0,
		"00400000-01fc2000 r-xp 00000000 fe:01 1234 /opt/other":               0,
		"c000000000-c000800000 rw-p 00000000 00:00 0":                         0,
		"x-y r--p 01bc2000 fe:01 1234 /opt/my programs/bowline":               0,
		"": 0,
	} {
		if _, length, ok := readOnlyMapping(line, file); length != want || ok != (want > 0) {
			t.Errorf("%q: length %#x, ok %t; want %#x", line, length, ok, want)
		}
	}
}

// TestReleaseInitLosesNothing: what was given back is there again when it is used.
func TestReleaseInitLosesNothing(t *testing.T) {
	releaseInit()
	if len(each(errTest)) != 1 || version == "" {
		t.Error("the program is not what it was")
	}
}

var errTest = error(testError("one"))

type testError string

func (e testError) Error() string { return string(e) }
