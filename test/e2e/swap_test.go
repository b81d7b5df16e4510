package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

// A container gets no swap, as from a kubelet with the swap behavior NoSwap: in cgroup version 2 its
// own limit of swap is 0, in version 1 its memory and swap together have the limit of its memory.
// The kernel has the limits also on a host without swap, where they matter once swap is turned on.
func TestNoSwap(t *testing.T) {
	parallel(t)
	// The root cgroup of version 2 has no such file.
	const file1, file2 = "memory.memsw.limit_in_bytes", "memory.swap.max"
	one, _ := filepath.Glob("/sys/fs/cgroup/memory/" + file1)
	two, _ := filepath.Glob("/sys/fs/cgroup/*/" + file2)
	if len(one)+len(two) == 0 {
		t.Skip("the kernel does not limit swap by cgroup: there is neither " + file1 + " nor " + file2)
	}
	ns := namespace(t)
	for name, resources := range map[string]string{"limited": "limits: {memory: 32Mi}", "unlimited": "requests: {memory: 16Mi}"} {
		create(t, ns, brief(name, "containers: [{name: main, image: $TOOLBOX, command: [sleep, inf], resources: {"+resources+"}}]"))
	}
	read := func(name string, files ...string) string {
		return strings.TrimSpace(cgroupFile(t, containerOf(ready(t, ns, name), "main"), files...))
	}
	equal(t, "the memory limit", read("limited", "memory.limit_in_bytes", "memory.max"), "33554432")
	for _, name := range []string{"limited", "unlimited"} {
		want := "0"
		if len(one) > 0 {
			want = read(name, "memory.limit_in_bytes")
		}
		equal(t, "the limit of swap, "+name, read(name, file1, file2), want)
	}
}
