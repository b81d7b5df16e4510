package ssh

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestMountsOfAPod gives the scripts a mountinfo that a pod has made large. The host is probed and
// keeps its budget, other pods' mounts are listed, and the pod's own list fails at worst.
func TestMountsOfAPod(t *testing.T) {
	root := t.TempDir()
	of := func(pod string) string { return root + "/pods/" + pod }
	const cgroup = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	line := func(from, at, fsType string) string {
		return fmt.Sprintf("31 24 0:27 %s %s rw,relatime shared:1 - %s source rw,size=1\n", from, at, fsType)
	}
	good := line("/", of("good")+"/a", "tmpfs") + line("/", of("good"), "ext4") + line("/", of("good")+"2", "ext4")
	long := strings.Repeat(`/`+strings.Repeat(`\040`, 255), 64)
	deep := strings.Repeat("/"+strings.Repeat("d", 250), 16)
	for name, c := range map[string]struct {
		mounts int
		from   string
		below  string
		fsType string
		fails  bool
	}{
		"long roots":                  {200, long, "/volume-subpaths/v/c", "ext4", false},
		"the control groups":          {7_000, "/" + strings.Repeat("x", 200), "/volume-subpaths/v/c", "cgroup2", false},
		"too many mounts":             {20_000, "/", "/volume-subpaths/v/c", "ext4", true},
		"more than one answer may be": {6_000, "/", deep, "ext4", true},
	} {
		file := filepath.Join(t.TempDir(), "mountinfo")
		var b strings.Builder
		for i := range c.mounts {
			b.WriteString(line(c.from, fmt.Sprintf("%s%s/%d", of("bad"), c.below, i), c.fsType))
		}
		testutil.Must(t, os.WriteFile(file, []byte(b.String()+good+cgroup), 0o644))
		for shell, config := range shellsHere(t) {
			t.Run(name+"/"+shell, func(t *testing.T) {
				for _, script := range []*string{&scriptProbe, &scriptListMounts} {
					text := *script
					defer func() { *script = text }()
					*script = strings.ReplaceAll(text, "/proc/self/mountinfo", file)
				}
				account := budget.New(budget.Limits{})
				config.Name, config.RootDir, config.Transport, config.Budget = "far.example", root, &shtest.Transport{}, account
				h, err := New(context.Background(), config)
				if err != nil {
					t.Fatalf("%.300v", err)
				}
				defer h.Close()
				if got := h.machine().hier; got.Version != 2 || len(got.All) != 1 || got.V2 != "/sys/fs/cgroup" {
					t.Errorf("the hierarchies are %.300v", fmt.Sprint(got))
				}
				list, err := h.ListMounts(t.Context(), of("good"))
				if err != nil || len(list) != 2 || list[0].Target != of("good")+"/a" || list[0].Type != "tmpfs" ||
					list[0].Source != "source" || strings.Join(list[0].Options, ",") != "rw,relatime" {
					t.Errorf("the other pod: %+v, %.300v", list, err)
				}
				list, err = h.ListMounts(t.Context(), of("bad"))
				switch {
				case c.fails && !errors.Is(err, host.ErrTooLarge):
					t.Errorf("error %.300v, want %v", err, host.ErrTooLarge)
				case !c.fails && (err != nil || len(list) != c.mounts):
					t.Errorf("%d mounts, want %d: %.300v", len(list), c.mounts, err)
				}
				if err := account.Err(); err != nil {
					t.Errorf("a pod ended the driver: %v", err)
				}
			})
		}
	}
}
