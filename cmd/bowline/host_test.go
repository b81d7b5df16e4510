package main

import "testing"

func TestSSHAddress(t *testing.T) {
	for text, want := range map[string]string{
		"box": "box:22", "10.0.0.7": "10.0.0.7:22", "10.0.0.7:2222": "10.0.0.7:2222", "fd00::7": "[fd00::7]:22",
		"[fd00::7]": "[fd00::7]:22", "[fd00::7]:2222": "[fd00::7]:2222",
		"": "", "root@box": "", "ssh://box": "", "box:": "", ":22": "", "a b": "",
	} {
		got, err := sshAddress(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
}
