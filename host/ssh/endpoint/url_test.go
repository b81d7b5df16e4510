package endpoint

import (
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/test/corpus"
)

func TestParse(t *testing.T) {
	for raw, want := range map[string]URL{
		"ssh://root@10.0.0.7/run/containerd/containerd.sock": {"root", "10.0.0.7", 0, "/run/containerd/containerd.sock"},
		"ssh://me@edge-1.example.com:2222/run/crio.sock":     {"me", "edge-1.example.com", 2222, "/run/crio.sock"},
		"ssh://root@[fd00::7]:22/a":                          {"root", "fd00::7", 22, "/a"},
		"ssh://root@[fe80::1%25]/a":                          {"root", "fe80::1%25", 0, "/a"},
		"ssh://alias/a.sock":                                 {"", "alias", 0, "/a.sock"},
		"ssh://me@corp@host/a":                               {"me@corp", "host", 0, "/a"},
	} {
		got, err := Parse(raw)
		if err != nil || got != want {
			t.Errorf("Parse(%q) is %+v, %v", raw, got, err)
		}
		if got.String() != raw {
			t.Errorf("%q came back as %q", raw, got)
		}
	}
}

func TestParseMistakes(t *testing.T) {
	for raw, says := range map[string]string{
		"":                              "no scheme",
		"/run/containerd.sock":          "no scheme",
		"root@host:/run/a":              "no scheme",
		"http://root@host/a":            "scheme is http",
		"root:secret@x://host/a":        "what stands there",
		"ssh://root:secret@host/a":      "password",
		"ssh://root:@host/a":            "password",
		"ssh://@host/a":                 "no user before it",
		"ssh://ro ot@host/a":            "character ' '",
		"ssh://-oProxy@host/a":          "starts with a dash",
		"ssh://r%40t@host/a":            "character '%'",
		"ssh://root@/a":                 "no host",
		"ssh://root@:22/a":              "no host",
		"ssh://root@ho st/a":            "neither a name nor an address",
		"ssh://root@-host/a":            "neither a name nor an address",
		"ssh://root@fd00::7/a":          "brackets",
		"ssh://root@[10.0.0.7]/a":       "no IPv6 address",
		"ssh://root@[fd00::7/a":         "no IPv6 address",
		"ssh://root@[fd00::7]22/a":      "other than :port",
		"ssh://root@host:/a":            `port ""`,
		"ssh://root@host:0/a":           `port "0"`,
		"ssh://root@host:022/a":         `port "022"`,
		"ssh://root@host:65536/a":       `port "65536"`,
		"ssh://root@host:ssh/a":         `port "ssh"`,
		"ssh://root@host":               "names no socket",
		"ssh://root@host/":              "names no socket",
		"ssh://root@host:22":            "names no socket",
		"ssh://root@host/run/../a":      `write it as "/a"`,
		"ssh://root@host//run/a":        `write it as "/run/a"`,
		"ssh://root@host/run/":          `write it as "/run"`,
		"ssh://root@host/run/a?x=1":     "escapes and queries",
		"ssh://root@host/run/%20":       "escapes and queries",
		"ssh://root@host/" + longPath(): "at most 107",
	} {
		u, err := Parse(raw)
		if err == nil {
			t.Errorf("Parse(%q) is %+v", raw, u)
			continue
		}
		if !strings.Contains(err.Error()+"\n"+hint.Of(err), says) {
			t.Errorf("Parse(%q): %v; it should say %q", raw, err, says)
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("Parse(%q) repeats the password: %v", raw, err)
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("Parse(%q): %q is no sentence", raw, err)
		}
	}
}

func longPath() string { return strings.Repeat("a", maxSocket) }

func TestParseJumps(t *testing.T) {
	got, err := parseJumps("a, me@b:2222 ,ssh://c:22/,[fd00::7]")
	if err != nil || len(got) != 4 || got[0] != (URL{Host: "a"}) || got[1] != (URL{"me", "b", 2222, ""}) || got[2] != (URL{Host: "c", Port: 22}) || got[3] != (URL{Host: "fd00::7"}) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := parseJumps("None"); got != nil || err != nil {
		t.Errorf("none is %+v, %v", got, err)
	}
	for _, bad := range []string{"a,,b", "a:0", "http://a", "me:secret@a", "a b", ","} {
		if got, err := parseJumps(bad); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q is %+v, %v", bad, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"ssh://root@10.0.0.7:22/run/a.sock", "ssh://[fd00::7]/a", "ssh://a:pw@b/c", "ssh://a@b@c:9/d"} {
		f.Add(s)
	}
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := Parse(raw)
		if err != nil {
			if rest, ok := strings.CutPrefix(raw, "ssh://"); ok {
				// The text between a colon and the last @ before the path may be a password.
				authority, _, _ := strings.Cut(rest, "/")
				if i := strings.LastIndexByte(authority, '@'); i >= 0 {
					if _, password, ok := strings.Cut(authority[:i], ":"); ok && len(password) > 8 && strings.Contains(err.Error(), password) &&
						!strings.Contains("the endpoint has a password in it: remove it, and log in with a key", password) {
						t.Errorf("the error repeats %q: %v", password, err)
					}
				}
			}
			return
		}
		again, err := Parse(u.String())
		if err != nil || again != u {
			t.Errorf("%q: %+v came back as %+v, %v", raw, u, again, err)
		}
		if u.Host == "" || u.Socket == "" || u.Port < 0 || u.Port > 65535 {
			t.Errorf("%q is %+v", raw, u)
		}
	})
}
