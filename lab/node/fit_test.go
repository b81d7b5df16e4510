package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/lab/internal/testutil"
)

func TestFit(t *testing.T) {
	const (
		whole = `{"linux":{"resources":{"hugepageLimits":[{"limit":0,"pageSize":"2MB"}],"memory":{"limit":9223372036854771712}}},` +
			`"process":{"capabilities":{"bounding":["CAP_CHOWN","CAP_SYS_RESOURCE","CAP_OF_TOMORROW"]},"oomScoreAdj":-997}}`
		all = ^uint64(0)
	)
	for name, test := range map[string]struct {
		limits limits
		want   string
	}{
		"nothing is missing":  {limits{hugetlb: true, oomScoreAdj: -1000, capabilities: all}, whole},
		"no huge pages":       {limits{oomScoreAdj: -1000, capabilities: all}, strings.Replace(whole, `"hugepageLimits":[{"limit":0,"pageSize":"2MB"}],`, "", 1)},
		"no lower OOM score":  {limits{hugetlb: true, capabilities: all}, strings.Replace(whole, "-997", "0", 1)},
		"a score that is met": {limits{hugetlb: true, oomScoreAdj: -997, capabilities: all}, whole},
		"a capability less":   {limits{hugetlb: true, oomScoreAdj: -1000, capabilities: all &^ (1 << 24)}, strings.Replace(whole, `"CAP_SYS_RESOURCE",`, "", 1)},
	} {
		path := filepath.Join(t.TempDir(), "config.json")
		testutil.Must(t, os.WriteFile(path, []byte(whole), 0o600))
		testutil.Must(t, rewrite(path, test.limits.fitContainer))
		if got, err := os.ReadFile(path); err != nil || string(got) != test.want {
			t.Errorf("%s: %s, %v, want\n%s", name, got, err, test.want)
		}
	}
}

func TestOption(t *testing.T) {
	for _, args := range [][]string{
		{"--root=/run/runc", "create", "--bundle", "/b", "--pid-file", "/p", "id"},
		{"--root", "/run/runc", "create", "--bundle=/b", "id"},
		{"create", "-b", "/b", "id"},
	} {
		if got := option(args, "--bundle", "-b"); got != "/b" {
			t.Errorf("%q: %q", args, got)
		}
	}
	if got := option([]string{"delete", "id"}, "--bundle", "-b"); got != "" {
		t.Errorf("an option that is not there: %q", got)
	}
}
