package images

import (
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/test/corpus"
)

var hex64 = strings.Repeat("0123456789abcdef", 4)

func TestParse(t *testing.T) {
	for name, want := range map[string]Reference{
		"busybox":                               {"docker.io/library/busybox", "latest", ""},
		"busybox:1":                             {"docker.io/library/busybox", "1", ""},
		"localhost:5000":                        {"docker.io/library/localhost", "5000", ""},
		"team/app":                              {"docker.io/team/app", "latest", ""},
		"docker.io/app":                         {"docker.io/library/app", "latest", ""},
		"index.docker.io/app:2":                 {"docker.io/library/app", "2", ""},
		"my_host.local/app":                     {"my_host.local/app", "latest", ""},
		"localhost/app":                         {"localhost/app", "latest", ""},
		"localhost:5000/app":                    {"localhost:5000/app", "latest", ""},
		"registry.k8s.io/a/b/c:v1.2-rc.3":       {"registry.k8s.io/a/b/c", "v1.2-rc.3", ""},
		"HOST/app":                              {"HOST/app", "latest", ""},
		"[fd00::1]:5000/app:1":                  {"[fd00::1]:5000/app", "1", ""},
		"a__b/c-d.e_f---g":                      {"docker.io/a__b/c-d.e_f---g", "latest", ""},
		"app@sha256:" + hex64:                   {"docker.io/library/app", "", "sha256:" + hex64},
		"r.example/app:1@sha256:" + hex64:       {"r.example/app", "1", "sha256:" + hex64},
		"app@sha512:" + hex64 + hex64:           {"docker.io/library/app", "", "sha512:" + hex64 + hex64},
		"app:" + strings.Repeat("x", 128):       {"docker.io/library/app", strings.Repeat("x", 128), ""},
		"r.example/" + strings.Repeat("x", 255): {"r.example/" + strings.Repeat("x", 255), "latest", ""},
	} {
		got, err := Parse(name)
		if err != nil || got != want {
			t.Errorf("Parse(%q) = %+v, %v; want %+v", name, got, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, name := range []string{
		"", " ", "app ", "App", "a/B", ":1", "app:", "app:-x", "app@", "app@sha256:short", "app@sha256:" + strings.ToUpper(hex64),
		"app@md5:" + hex64[:32], "app:1:2", "/app", "app/", "a//b", "-host.example/app", "app..x", "a___b", "app_", "http://r.example/app",
		"r.example:port/app", "[::g]/app", hex64, "app:" + strings.Repeat("x", 129), "r.example/" + strings.Repeat("x", 256), "a\x00b", "ä",
	} {
		if got, err := Parse(name); err == nil {
			t.Errorf("Parse(%q) = %+v; want an error", name, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"busybox", "r.example:5000/a/b:v1@sha256:" + hex64, "", "a/B", "[::1]/x", "docker.io/x"} {
		f.Add(s)
	}
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		r, err := Parse(s)
		if err != nil {
			return
		}
		if r.Repository == "" || r.Tag == "" && r.Digest == "" {
			t.Fatalf("Parse(%q) = %+v has holes", s, r)
		}
		full := r.Repository
		if r.Tag != "" {
			full += ":" + r.Tag
		}
		if r.Digest != "" {
			full += "@" + r.Digest
		}
		again, err := Parse(full)
		if err != nil || again != r {
			t.Fatalf("Parse(%q) = %+v, but its normal form %q parses to %+v, %v", s, r, full, again, err)
		}
		asked := withDefaultTag(s, r)
		if same, err := Parse(asked); err != nil || same != r {
			t.Fatalf("%q is asked for as %q, which is %+v, %v; want %+v", s, asked, same, err, r)
		}
	})
}
