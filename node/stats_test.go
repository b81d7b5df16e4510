package node

import "testing"

func TestOwnCgroup(t *testing.T) {
	for text, want := range map[string]string{
		"0::/system.slice/bowline.service\n":                                              "/system.slice/bowline.service",
		"12:memory:/system.slice/bowline.service\n3:cpu,cpuacct:/other\n0::/init.scope\n": "/system.slice/bowline.service",
		"4:cpu,memory:/a\n":    "/a",
		"0::/\n":               "",
		"5:memory:/\n0::/x\n":  "/x",
		"":                     "",
		"nonsense\n0::../../x": "",
	} {
		if got := ownCgroupOf(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
