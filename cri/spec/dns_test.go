package spec_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

func TestParseResolvConf(t *testing.T) {
	for text, want := range map[string]spec.ResolvConf{
		"": {},
		"nameserver 1.2.3.4\n nameserver\tfe80::1%eth0 # tail\n": {Nameservers: []string{"1.2.3.4", "fe80::1%eth0"}},
		"search a.example b.example.\nsearch c.example . d.\n":   {Searches: []string{"c.example", "d"}},
		"options ndots:1 edns0\noptions ndots:4 rotate":          {Options: []string{"ndots:4", "edns0", "rotate"}},
		"# nameserver 9.9.9.9\n;x\ndomain x\nsortlist 1\n":       {},
		"nameserver 1.1.1.1\r\nsearch x\r\n":                     {Nameservers: []string{"1.1.1.1"}, Searches: []string{"x"}},
	} {
		got, err := spec.ParseResolvConf([]byte(text))
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	if got, err := spec.ParseResolvConf([]byte("nameserver\nnameserver 1.1.1.1")); err == nil || len(got.Nameservers) != 1 {
		t.Errorf("an empty nameserver line: %+v, %v; want an error beside the rest", got, err)
	}
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add("nameserver 1.1.1.1\nsearch a b.\noptions x:1 x:2\n")
	f.Add("nameserver\n#\n\n search .")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, text string) {
		conf, err := spec.ParseResolvConf([]byte(text))
		if err != nil {
			return
		}
		// Writing and reparsing it loses nothing.
		var b strings.Builder
		for _, n := range conf.Nameservers {
			b.WriteString("nameserver " + n + "\n")
		}
		if len(conf.Searches) > 0 {
			b.WriteString("search " + strings.Join(conf.Searches, ".  ") + ".\n")
		}
		if len(conf.Options) > 0 {
			b.WriteString("options " + strings.Join(conf.Options, " ") + "\n")
		}
		again, err := spec.ParseResolvConf([]byte(b.String()))
		testutil.Must(t, err)
		if diff := cmp.Diff(conf, again); diff != "" {
			t.Fatalf("%q (-first +again):\n%s", text, diff)
		}
	})
}

func TestDNSPolicies(t *testing.T) {
	m := spec.Machine{ClusterDomain: "c.local", ClusterDNS: []string{"10.0.0.10"}, HostResolv: []byte("nameserver 192.0.2.1\nsearch example.com c.local\noptions rotate")}
	cluster := []string{"shop.svc.c.local", "svc.c.local", "c.local", "example.com"}
	for _, c := range []struct {
		policy      v1.DNSPolicy
		hostNetwork bool
		servers     []string
		searches    []string
		options     []string
	}{
		{v1.DNSClusterFirst, false, []string{"10.0.0.10"}, cluster, []string{"ndots:5"}},
		{v1.DNSClusterFirst, true, []string{"192.0.2.1"}, []string{"example.com", "c.local"}, []string{"rotate"}},
		{v1.DNSClusterFirstWithHostNet, true, []string{"10.0.0.10"}, cluster, []string{"ndots:5"}},
		{v1.DNSDefault, false, []string{"192.0.2.1"}, []string{"example.com", "c.local"}, []string{"rotate"}},
		{v1.DNSNone, false, nil, nil, nil},
	} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: v1.PodSpec{DNSPolicy: c.policy, HostNetwork: c.hostNetwork}}
		got, warnings, err := spec.DNS(p, m)
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s: %v, %v", c.policy, warnings, err)
			continue
		}
		if diff := cmp.Diff([][]string{c.servers, c.searches, c.options}, [][]string{got.Servers, got.Searches, got.Options}); diff != "" {
			t.Errorf("%s, host network %v (-want +got):\n%s", c.policy, c.hostNetwork, diff)
		}
	}
}

func TestDNSLimits(t *testing.T) {
	for _, c := range []struct {
		name     string
		searches []string
		kept     int
		warned   bool
	}{
		{"as many as there may be", repeat("a", 32), 32, false},
		{"one more", repeat("a", 33), 32, true},
		{"exactly 2048 characters", append(repeat(strings.Repeat("x", 220), 8), strings.Repeat("y", 224)), 9, false},
		{"a character more", append(repeat(strings.Repeat("x", 220), 8), strings.Repeat("y", 225)), 8, true},
		{"one too long for a domain", []string{"a", strings.Repeat("x", 254), "b"}, 2, true},
		{"none", nil, 0, false},
	} {
		p := &v1.Pod{Spec: v1.PodSpec{DNSPolicy: v1.DNSNone, DNSConfig: &v1.PodDNSConfig{Searches: c.searches}}}
		got, warnings, err := spec.DNS(p, spec.Machine{})
		if err != nil || len(got.Searches) != c.kept || (len(warnings) > 0) != c.warned {
			t.Errorf("%s: kept %d, warnings %v, %v; want %d", c.name, len(got.Searches), warnings, err, c.kept)
		}
		if len(strings.Join(got.Searches, " ")) > 2048 {
			t.Errorf("%s: the line has more than 2048 characters", c.name)
		}
	}
}

// TestCheckResolvConf: of what a pod cannot get, the first is named.
func TestCheckResolvConf(t *testing.T) {
	for name, c := range map[string]struct{ text, domain, want string }{
		"all fits":               {"nameserver 192.0.2.1\nsearch " + strings.Join(repeat("a", 29), " "), "c.local", ""},
		"too many":               {"search " + strings.Join(repeat("a", 30), " "), "c.local", "/r has more than 29 search domains, and pods get no more than these"},
		"many, and no cluster's": {"search " + strings.Join(repeat("a", 32), " "), "", ""},
		"one more":               {"search " + strings.Join(repeat("a", 33), " "), "", "/r has more than 32 search domains, and pods get no more than these"},
		"too long for a domain":  {"search " + strings.Repeat("x", 254), "", "/r has a search domain of more than 253 characters, which pods do not get"},
		"too long":               {"search " + strings.Join(repeat(strings.Repeat("x", 220), 10), " "), "", "/r has search domains of more than 2048 characters, and pods get no more than these"},
		"no address":             {"nameserver", "", "a nameserver line has no address"},
		"empty":                  {},
	} {
		if got := spec.CheckResolvConf([]byte(c.text), "/r", c.domain); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// repeat returns n different strings that begin with s and are 7 characters longer.
func repeat(s string, n int) []string {
	var out []string
	for i := range n {
		out = append(out, s+string(rune('A'+i/26))+string(rune('a'+i%26))+".....")
	}
	return out
}
