package node

import (
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/stats"
)

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

// TestStatsMachine: what is known of the host reaches the metrics of the machine.
func TestStatsMachine(t *testing.T) {
	got := statsMachine(host.Facts{
		KernelVersion: "6.12.1", OSImage: "Debian GNU/Linux 13", MachineID: "m-1", SystemUUID: "u-1", BootID: "b-1",
		CPUs: 8, PhysicalCores: 4, CPUSockets: 1,
	}, 110)
	want := stats.Machine{
		KernelVersion: "6.12.1", OSImage: "Debian GNU/Linux 13", MachineID: "m-1", SystemUUID: "u-1", BootID: "b-1",
		CPUs: 8, PhysicalCores: 4, CPUSockets: 1, MaxPods: 110,
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
