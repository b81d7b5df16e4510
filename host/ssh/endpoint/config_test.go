package endpoint

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// home makes a home directory with these files.
func home(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		testutil.Must(t, os.MkdirAll(filepath.Dir(name), 0o700))
		testutil.Must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	return dir
}

const bigConfig = `# first values count
Host edge edge-* !edge-9
	HostName=%h.example.com
	Port = 2222
	User "carl"
	IdentityFile "HOME/keys/one key"
	IdentityFile HOME/keys/%h-%p-%r # a comment
	CertificateFile HOME/cert.pub
	IdentitiesOnly yes
	UserKnownHostsFile HOME/kh1 HOME/kh2
	ProxyJump jim@gate:2200,inner
Host gate
	HostName 192.0.2.1
	ProxyJump none
Host inner
	HostName 192.0.2.2
	User ina
	ProxyJump nowhere
Host twice
	HostName first
	HostName second
	Port 1
Host TWICE
	User no
Host twi?e
	User two
	HostKeyAlias known
Host *
	User rest
	Port 22
`

// TestConfigAsOpenSSH compares with the output of ssh -G for the same file.
func TestConfigAsOpenSSH(t *testing.T) {
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		t.Skip("there is no ssh here")
	}
	dir := home(t, map[string]string{"extra/a": "Host one\n  User included\n", "extra/b": "Port 33\nHost two\n Port 44\n"})
	file := filepath.Join(dir, "config")
	text := strings.ReplaceAll(bigConfig, "HOME", dir) + "Include " + dir + "/extra/*\n"
	for _, c := range []string{text, "Include " + dir + "/extra/*\n" + text, "Host one\n Include " + dir + "/extra/*\n" + text,
		"Host x\nMatch all\n User mall\n" + text, "host\tedge  other\n\tport   77\n" + text} {
		testutil.Must(t, os.WriteFile(file, []byte(c), 0o600))
		for _, alias := range []string{"edge", "edge-1", "edge-9", "gate", "inner", "twice", "one", "two", "other", "x"} {
			out, err := exec.Command(ssh, "-G", "-F", file, alias).Output()
			if err != nil {
				t.Fatalf("ssh -G %s: %v", alias, err)
			}
			want := map[string]string{}
			for _, line := range strings.Split(string(out), "\n") {
				if key, value, ok := strings.Cut(line, " "); ok && strings.Contains(" hostname port user identityfile certificatefile identitiesonly userknownhostsfile proxyjump hostkeyalias ", " "+key+" ") {
					want[key] += value + "|"
				}
			}
			s, err := readConfig(file, alias, dir)
			testutil.Must(t, err)
			got := map[string]string{}
			add := func(key string, values ...string) {
				for _, v := range values {
					if v != "" {
						got[key] += v + "|"
					}
				}
			}
			name, _ := expand(s.hostName, map[byte]string{'h': alias})
			add("hostname", or(name, alias))
			add("port", or(s.port, "22"))
			add("user", s.user)
			add("identityfile", s.identityFiles...)
			add("certificatefile", s.certificateFiles...)
			add("identitiesonly", or(s.identitiesOnly, "no"))
			add("proxyjump", s.proxyJump)
			add("hostkeyalias", s.hostKeyAlias)
			add("userknownhostsfile", strings.Join(s.userKnownHosts, " "))
			for _, key := range []string{"identityfile", "userknownhostsfile"} {
				if got[key] == "" { // ssh's defaults are added elsewhere
					delete(want, key)
				}
			}
			if want["proxyjump"] == "none|" || got["proxyjump"] == "none|" { // versions of ssh print it differently
				delete(want, "proxyjump")
				delete(got, "proxyjump")
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: got  %v\nwant %v\nof\n%s", alias, got, want, c)
			}
		}
	}
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func TestResolve(t *testing.T) {
	dir := home(t, map[string]string{"config": ""})
	file := filepath.Join(dir, "config")
	testutil.Must(t, os.WriteFile(file, []byte(strings.ReplaceAll(bigConfig, "HOME", "~")), 0o600))
	o := Options{ConfigFile: file, Home: dir}
	got, err := Resolve("ssh://edge/run/a.sock", o)
	testutil.Must(t, err)
	known := []string{dir + "/.ssh/known_hosts", dir + "/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts"}
	want := &Target{Name: "edge", Address: "edge.example.com:2222", HostKeyName: "edge.example.com:2222", User: "carl", Socket: "/run/a.sock",
		IdentityFiles:    []string{dir + "/keys/one key", dir + "/keys/edge.example.com-2222-carl"},
		CertificateFiles: []string{dir + "/cert.pub"}, IdentitiesOnly: true, KnownHosts: []string{dir + "/kh1", dir + "/kh2"},
		Jumps: []Target{
			{Name: "gate", Address: "192.0.2.1:2200", HostKeyName: "192.0.2.1:2200", User: "jim", KnownHosts: known},
			{Name: "inner", Address: "192.0.2.2:22", HostKeyName: "192.0.2.2:22", User: "ina", KnownHosts: known},
		}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}

	// The URL's user and port have priority over the file, options over both.
	pin := "SHA256:" + strings.Repeat("A", 43)
	got, err = Resolve("ssh://me@edge:1/a", Options{ConfigFile: file, Home: dir, ProxyJump: "none", KnownHosts: []string{"/kh"}, HostKeys: []string{pin}})
	if err != nil || got.String() != "me@edge.example.com:1" || got.Jumps != nil || got.KnownHosts[0] != "/kh" || got.HostKeys[0] != pin {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err = Resolve("ssh://twice/a", o); err != nil || got.HostKeyName != "known:22" || got.Address != "first:1" {
		t.Errorf("got %+v, %v", got, err)
	}
	t.Setenv("BOWLINE_TEST", "/of/env")
	env := home(t, map[string]string{"config": "User u\nIdentityFile ${BOWLINE_TEST}/%%k\nIdentityAgent $BOWLINE_TEST\n"})
	if got, err = Resolve("ssh://x/a", Options{ConfigFile: env + "/config", Home: env}); err != nil || got.IdentityFiles[0] != "/of/env/%k" || got.AgentSocket != "/of/env" {
		t.Errorf("got %+v, %v", got, err)
	}
	// Without a file nothing is looked up.
	if got, err = Resolve("ssh://root@edge/a", Options{Home: dir, ProxyJump: "j@a"}); err != nil || got.Address != "edge:22" || got.KnownHosts != nil || len(got.Jumps) != 1 || got.Jumps[0].Address != "a:22" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestJumpsOfJumps(t *testing.T) {
	dir := home(t, map[string]string{"config": "Host a\n ProxyJump b\nHost b\n ProxyJump c,d\nHost d\n ProxyJump a\nHost *\n User u\n",
		"circle": "Host *\n ProxyJump gate\n User u\n"})
	got, err := Resolve("ssh://a/s", Options{ConfigFile: filepath.Join(dir, "config"), Home: dir})
	testutil.Must(t, err)
	var names []string
	for _, j := range got.Jumps {
		names = append(names, j.Name)
		if j.Jumps != nil || j.Socket != "" {
			t.Errorf("a jump is %+v", j)
		}
	}
	if strings.Join(names, " ") != "c d b" {
		t.Errorf("the way to a is by %v", names)
	}
	if _, err := Resolve("ssh://a/s", Options{ConfigFile: filepath.Join(dir, "circle"), Home: dir}); err == nil || !strings.Contains(hint.Text(err), `Give gate the line "ProxyJump none"`) {
		t.Errorf("a circle: %v", err)
	}
}

func TestConfigMistakes(t *testing.T) {
	for text, says := range map[string]string{
		"Host x\nMatch host y\n User u\n":     "line 2: the keyword Match is not supported",
		"Match exec \"rm -rf /\"\n":           "Match is not supported",
		"Include circle\n":                    "line 1: ",
		"Include config-missing-is-fine\n":    "no user is set",
		"User\n":                              "line 1: user has no value",
		"User \"a\n":                          "quote is not closed",
		"User a b\n":                          "takes one value",
		"User u\nPort 99999\n":                `port "99999"`,
		"User u\nIdentitiesOnly maybe\n":      "yes or no",
		"User u\nProxyCommand nc %h %p\n":     "ProxyCommand is not run",
		"User u\nProxyJump a,,b\n":            "no host",
		"User u\nIdentityFile ~bob/key\n":     "home of another user",
		"User u\nIdentityFile ~/%Z\n":         "%Z is not supported",
		"User u\nHostName %\n":                "lone %",
		"User u\nIdentityFile ${NO_SUCH}/k\n": "${NO_SUCH} is not set",
		"Host other\n User u\n":               "no user is set",
		"User u\nUserKnownHostsFile ~bob\n":   "home of another user",
	} {
		dir := home(t, map[string]string{"config": text, ".ssh/circle": "Include circle\n"})
		_, err := Resolve("ssh://x/a", Options{ConfigFile: filepath.Join(dir, "config"), Home: dir})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q gave %v; it should say %q", text, err, says)
		}
	}
	if _, err := Resolve("ssh://root@x/a", Options{ConfigFile: "/no/such/file"}); err == nil || !strings.Contains(err.Error(), "/no/such/file") {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := Resolve("ssh://x/a", Options{}); err == nil || !strings.Contains(hint.Text(err), "Use ssh://user@host/") {
		t.Errorf("no user: %v", err)
	}
	if _, err := Resolve("ssh://root@x/a", Options{HostKeys: []string{"x"}}); err == nil || !strings.Contains(hint.Text(err), "bowline host scan") {
		t.Errorf("a bad host key: %v", err)
	}
}

func FuzzConfigLine(f *testing.F) {
	for _, s := range []string{"Host a b", "IdentityFile \"a b\" # c", `User=\"x`, "ProxyCommand nc '%h", "Port\t=\t22", "a=b=c"} {
		f.Add(s)
	}
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, line string) {
		keyword, args, err := splitLine(line)
		if err != nil || keyword == "" {
			return
		}
		if strings.ContainsAny(keyword, " \t=") || len(args) == 0 {
			t.Errorf("%q is %q of %q", line, keyword, args)
		}
		if keyword == "proxycommand" {
			return
		}
		// Quoted again, the arguments are the same.
		again := keyword
		for _, a := range args {
			again += fmt.Sprintf(` "%s"`, strings.NewReplacer(`\`, `\\`, `"`, `\"`, `'`, `\'`).Replace(a))
		}
		if k, got, err := splitLine(again); err != nil || k != keyword || !reflect.DeepEqual(got, args) {
			t.Errorf("%q is %q; %q is %q, %v", line, args, again, got, err)
		}
	})
}

func FuzzWildcard(f *testing.F) {
	f.Add("edge-*", "edge-1")
	f.Add("*?*", "a")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, pattern, s string) {
		if len(pattern) > 12 || len(s) > 20 {
			return
		}
		if got := wildcard(pattern, s); got != dumbWildcard(pattern, s) {
			t.Errorf("wildcard(%q, %q) is %v", pattern, s, got)
		}
	})
}

func dumbWildcard(p, s string) bool {
	switch {
	case p == "":
		return s == ""
	case p[0] == '*':
		return dumbWildcard(p[1:], s) || s != "" && dumbWildcard(p, s[1:])
	}
	return s != "" && (p[0] == '?' || p[0] == s[0]) && dumbWildcard(p[1:], s[1:])
}
