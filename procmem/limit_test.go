package procmem

import (
	"math"
	"runtime/debug"
	"testing"
	"testing/fstest"
)

func TestMemoryOfTheCgroup(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"none":                    {want: 0},
		"version 2":               {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "1000\n"}, 1000},
		"version 2, two limits":   {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "2000\n", "sys/fs/cgroup/a/memory.max": "1000\n"}, 1000},
		"a container's own":       {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1610612736\n"}, 1610612736},
		"a path that is not seen": {map[string]string{"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/memory.max": "5000\n"}, 5000},
		"version 1":               {map[string]string{"proc/self/cgroup": "9:cpu,cpuacct:/c\n3:memory:/m\n0::/u\n", "sys/fs/cgroup/memory/m/memory.limit_in_bytes": "4096\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 4096},
		"no number":               {map[string]string{"proc/self/cgroup": "0::/a\nnonsense\n", "sys/fs/cgroup/a/memory.max": "much\n"}, 0},
	} {
		files := fstest.MapFS{}
		for path, text := range c.files {
			files[path] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := cgroupMemory(files); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestKeepWithinTheCgroup(t *testing.T) {
	files := fstest.MapFS{"proc/self/cgroup": {Data: []byte("0::/\n")}, "sys/fs/cgroup/memory.max": {Data: []byte("10000000000\n")}}
	t.Setenv("GOMEMLIMIT", "off")
	if keepWithin(files) != 0 {
		t.Error("GOMEMLIMIT was not respected")
	}
	t.Setenv("GOMEMLIMIT", "")
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	if got := keepWithin(files); got != 10000000000 || debug.SetMemoryLimit(-1) != 9000000000 {
		t.Errorf("of %d bytes the limit is %d", got, debug.SetMemoryLimit(-1))
	}
	debug.SetMemoryLimit(math.MaxInt64)
	if keepWithin(fstest.MapFS{}) != 0 || debug.SetMemoryLimit(-1) != math.MaxInt64 {
		t.Error("a limit was set where there is none")
	}
}
