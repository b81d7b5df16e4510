package cgroups

import (
	"reflect"
	"testing"
)

func TestParseMountinfo(t *testing.T) {
	for name, test := range map[string]struct {
		mountinfo string
		want      []Hierarchy
	}{
		"v2": {
			"25 24 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
			[]Hierarchy{{Mount: "/sys/fs/cgroup", V2: true}},
		},
		"v1 beside v2": {
			"31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n" +
				"32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n" +
				"34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset,clone_children\n" +
				"40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/lib/x,name=systemd\n" +
				"41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
			[]Hierarchy{
				{Mount: "/sys/fs/cgroup/cpu,cpuacct", Options: []string{"cpu", "cpuacct"}},
				{Mount: "/sys/fs/cgroup/cpuset", Options: []string{"cpuset"}},
				{Mount: "/sys/fs/cgroup/systemd", Options: []string{"name=systemd"}},
				{Mount: "/sys/fs/cgroup/unified", V2: true},
			},
		},
		"mounted twice": {
			"25 24 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n60 24 0:23 / /mnt rw - cgroup2 cgroup2 rw\n",
			[]Hierarchy{{Mount: "/sys/fs/cgroup", V2: true}},
		},
		"none": {"23 1 0:5 / /proc rw - proc proc rw\nnonsense\n", nil},
	} {
		if got := parseMountinfo(test.mountinfo); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

func TestMember(t *testing.T) {
	const file = "9:name=systemd:/bowline-lab-1/host1/system\n3:cpuset:/\n0::/bowline-lab-1/host1\n"
	for path, want := range map[string]bool{
		"bowline-lab-1":              true,
		"bowline-lab-1/host1":        true,
		"bowline-lab-1/host1/system": true,
		"bowline-lab":                false,
		"bowline-lab-1/host":         false,
		"bowline-lab-11":             false,
	} {
		if got := member(file, path); got != want {
			t.Errorf("member of %s: %t", path, got)
		}
	}
}
