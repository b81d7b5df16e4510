package nodelogs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

func TestParse(t *testing.T) {
	for query, want := range map[string]string{
		"":                                         "none",
		"other=1":                                  "none",
		"query=kubelet":                            "",
		"query=kubelet&query=foo":                  "",
		"query=/foo.log":                           "",
		`query=foo\bar.log`:                        "",
		"query=kubelet&tailLines=0":                "",
		"query=kubelet&boot=-1&pattern=a.*b":       "",
		"query":                                    "bad",
		"query=+++":                                "bad",
		"query=kubelet&sinceTime=yesterday":        "bad",
		"query=kubelet&untilTime=1":                "bad",
		"query=kubelet&tailLines=x":                "bad",
		"query=kubelet&boot=x":                     "bad",
		"tailLines=5":                              "refused",
		"query=kubelet&query=/foo.log":             "refused",
		"query=/a&query=/b":                        "refused",
		"query=/foo.log&tailLines=5":               "refused",
		"query=kubelet&boot=1":                     "refused",
		"query=kubelet&tailLines=-1":               "refused",
		"query=kubelet&tailLines=100001":           "refused",
		"query=kubelet&pattern=(":                  "refused",
		"query=kubelet&pattern=(.?){1000}{10}":     "refused",
		"query=kubelet&pattern=(.?){1000}(.?){99}": "refused",
		"query=foo&pattern=(.?){1000}(.?){99}":     "",
		"query=kubelet&pattern=" + strings.Repeat("a", 257): "refused",
		"query=a;rm":           "refused",
		"query=a%3Brm":         "refused",
		"query=--file%3Dx%20y": "refused",
		"query=a&query=b&query=c&query=d&query=e":                               "refused",
		"query=" + strings.Repeat("a", 257):                                     "refused",
		"query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z": "refused",
		"query=a&sinceTime=2026-01-01T00:00:00Z&untilTime=2026-01-02T00:00:00Z": "",
	} {
		values, _ := url.ParseQuery(query)
		q, err := Parse(values)
		got := ""
		switch {
		case errors.Is(err, ErrNotAllowed):
			got = "refused"
		case err != nil:
			got = "bad"
		case q == nil:
			got = "none"
		}
		if query == "query=a;rm" { // url.ParseQuery drops it
			continue
		}
		if got != want {
			t.Errorf("%s is %q (%v), want %q", query, got, err, want)
		}
	}
}

func TestJournalctl(t *testing.T) {
	since, lines, boot := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600)), 7, -1
	got := strings.Join(Options{Since: &since, TailLines: &lines, Boot: &boot, Pattern: "a b"}.journalctl([]string{"x", "y"}), "|")
	if want := "journalctl|--utc|--no-pager|--output=short-precise|--since=2026-1-2 02:4:5|--pager-end|--lines=7|--unit=x|--unit=y|--grep=a b|--boot|-1"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("query=kubelet&tailLines=5&boot=-1&pattern=x&sinceTime=2026-01-02T00:00:00Z")
	f.Add("query=/var/log/../../etc/shadow")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, text string) {
		values, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		q, err := Parse(values)
		if err != nil || q == nil {
			return
		}
		for _, s := range q.Services {
			if strings.ContainsAny(s, " \n/'\"$;") || len(s) > maxService {
				t.Errorf("the service %q", s)
			}
		}
		if len(q.Services) > 0 == (len(q.Files) > 0) {
			t.Errorf("services %q and files %q", q.Services, q.Files)
		}
	})
}

func printed(t *testing.T, o *Own, options Options) string {
	t.Helper()
	var b bytes.Buffer
	testutil.Must(t, o.Print(t.Context(), &b, "box", "node1", options))
	return b.String()
}

func TestOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var next bytes.Buffer
		o := NewOwn(&next, 42)
		if got := printed(t, o, Options{}); got != "-- No entries --\n" {
			t.Errorf("without lines: %q", got)
		}
		io.WriteString(o, "I1126 pool.go:1] \"Started\"\nI1126 node.go:2] \"Registered the no")
		io.WriteString(o, "de\" host=\"box\"\n\tat a stack\nI1126 node.go:2] \"Other\" host=\"another\"\n\tits stack\n")
		time.Sleep(time.Minute)
		io.WriteString(o, `{"ts":1,"msg":"JSON","host":"box"}`+"\n")
		want := []string{`node1 kubelet[42]: I1126 pool.go:1] "Started"`, `node1 kubelet[42]: I1126 node.go:2] "Registered the node" host="box"`, "\tat a stack", `"JSON"`}
		got := printed(t, o, Options{})
		for _, w := range want {
			if strings.Count(got, w) != 1 {
				t.Errorf("no %q in %q", w, got)
			}
		}
		if strings.Contains(got, "another") || strings.Contains(got, "its stack") || strings.Count(next.String(), "\n") != 6 {
			t.Errorf("printed %q, passed on %q", got, next.String())
		}
		if !strings.HasPrefix(got, "Jan 01 00:00:00.000000 node1 kubelet[42]: ") {
			t.Errorf("not in the form of journalctl: %q", got)
		}
		one, back, recent := 1, -1, time.Now().Add(-time.Second)
		for what, c := range map[string]struct {
			options Options
			lines   int
			has     string
		}{
			"the last line": {Options{TailLines: &one}, 1, "JSON"}, "since": {Options{Since: &recent}, 1, "JSON"}, "until": {Options{Until: &recent}, 3, "Registered"},
			"a pattern": {Options{Pattern: "Regis.*box"}, 1, "Registered"}, "another boot": {Options{Boot: &back}, 1, "-- No entries --"},
		} {
			if got := printed(t, o, c.options); strings.Count(got, "\n") != c.lines || !strings.Contains(got, c.has) {
				t.Errorf("%s: %q", what, got)
			}
		}
		o.Forget(func(host string) bool { return host == "box" })
		if got := printed(t, o, Options{}); strings.Contains(got, "box") {
			t.Errorf("after it was forgotten: %q", got)
		}
	})
}

// TestOwnRecords: the lines of a record with values of several lines are those of its host, which klog
// writes last.
func TestOwnRecords(t *testing.T) {
	o := NewOwn(io.Discard, 1)
	io.WriteString(o, "I1 \"Began\" host=\"other\"\n")
	io.WriteString(o, "E1 \"Failed\" err=<\n\tfirst host=\"forged\"\n\n\tlast\n > host=\"box\" pod=<\n\tname\n >\n\tits stack\n")
	io.WriteString(o, "E2 \"Failed\" err=<\n\twithout its end\n")
	io.WriteString(o, "I2 \"Ended\"\n")
	for host, want := range map[string]string{
		"box":    "\"Failed\" err=<|\tfirst host=\"forged\"||\tlast| > host=\"box\" pod=<|\tname| >|\tits stack",
		"other":  "\"Began\" host=\"other\"",
		"forged": "",
	} {
		var got []string
		if l := o.hosts[host]; l != nil {
			for _, line := range l.all {
				got = append(got, line.text)
			}
		}
		if text := strings.Join(got, "|"); !strings.HasSuffix(text, want) || (want == "") != (text == "") {
			t.Errorf("%s: %q, want %q", host, text, want)
		}
	}
	if l := o.hosts[""]; len(l.all) != 3 {
		t.Errorf("of no host: %d lines", len(l.all))
	}
}

// TestOwnEndsWithItsCaller: a caller who has gone costs no more matching.
func TestOwnEndsWithItsCaller(t *testing.T) {
	o := NewOwn(io.Discard, 1)
	io.WriteString(o, "one\n")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := o.Print(ctx, io.Discard, "box", "n1", Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("it is %v", err)
	}
}

// TestOwnOfEmptyLines: lines cost memory without text as well.
func TestOwnOfEmptyLines(t *testing.T) {
	o := NewOwn(io.Discard, 1)
	for range 200 {
		io.WriteString(o, "E \"Failed\" err=<\n"+strings.Repeat("\n", 2000)+" > host=\"box\"\n")
	}
	for host, l := range o.hosts {
		if len(l.all) > keep/lineCost || l.size > keep {
			t.Errorf("%q has %d lines, %d bytes", host, len(l.all), l.size)
		}
	}
}

// TestOwnIsBounded: neither lines nor a line without an end grow for ever.
func TestOwnIsBounded(t *testing.T) {
	o := NewOwn(io.Discard, 1)
	for range 5000 {
		io.WriteString(o, strings.Repeat("x", 100)+` host="box"`+"\n")
	}
	io.WriteString(o, strings.Repeat("y", 1<<20))
	if l := o.hosts["box"]; l.size > keep || len(l.all) > keep/100 || len(o.part) > maxLine {
		t.Errorf("%d bytes in %d lines, %d in the last", l.size, len(l.all), len(o.part))
	}
}

// box is a fake host with a few files.
type box struct {
	files   map[string]string // content; "-> target" is a link; "dir" a directory
	journal string            // units
	ran     []string
}

type content struct{ *bytes.Reader }

func (content) Close() error { return nil }

type boxFile struct {
	content
	info host.FileInfo
}

func (f boxFile) Stat() (host.FileInfo, error) { return f.info, nil }

func (b *box) Stat(_ context.Context, p string) (host.FileInfo, error) {
	text, ok := b.files[p]
	if !ok {
		return host.FileInfo{}, &fs.PathError{Op: "stat", Path: p, Err: fs.ErrNotExist}
	}
	info := host.FileInfo{Name: path.Base(p), Size: int64(len(text)), Inode: uint64(len(p)), Mode: 0o644, Time: time.Unix(1, 0)}
	if target, ok := strings.CutPrefix(text, "-> "); ok {
		info.Mode, info.Target = fs.ModeSymlink|0o777, target
	}
	if text == "dir" {
		info.Mode = fs.ModeDir | 0o755
	}
	return info, nil
}

func (b *box) List(ctx context.Context, dir string) (out []host.FileInfo, err error) {
	for p := range b.files {
		if path.Dir(p) == dir {
			info, _ := b.Stat(ctx, p)
			out = append(out, info)
		}
	}
	return out, nil
}

func (b *box) Open(ctx context.Context, p string) (host.File, error) {
	info, err := b.Stat(ctx, p)
	return boxFile{content{bytes.NewReader([]byte(b.files[p]))}, info}, err
}

func (b *box) Run(_ context.Context, c host.Command) (host.Result, error) {
	if b.journal == "" {
		return host.Result{ExitCode: 127}, nil
	}
	return host.Result{Stdout: []byte(b.journal)}, nil
}

type process struct{ io.Reader }

func (process) Write(p []byte) (int, error) { return len(p), nil }
func (process) Close() error                { return nil }

func (b *box) Start(_ context.Context, args ...string) (host.Process, error) {
	b.ran = append(b.ran, strings.Join(args, " "))
	return process{strings.NewReader("from the journal\n")}, nil
}

func TestHandler(t *testing.T) {
	b := &box{journal: "docker.service\nsshd.service\n", files: map[string]string{
		"/var/log": "dir", "/var/log/syslog": "the syslog\n", "/var/log/app": "dir", "/var/log/app/app.log": "the app\n", "/var/log/pods": "dir", "/var/log/pods/0.log": "a pod\n",
		"/var/log/containers": "dir", "/var/log/containers/a.log": "-> /var/log/pods/0.log", "/var/log/relative": "-> app/app.log", "/var/log/dirlink": "-> app",
		"/var/log/evil": "-> /etc/shadow", "/var/log/evildir": "-> ../../etc", "/etc/shadow": "secret", "/var/log/loop": "-> loop", "/etc": "dir", "/var/log/sibling": "-> /var/logs/x", "/var/logs/x": "secret",
	}}
	h := &Handler{Host: b, Dir: "/var/log", Prefix: "/logs/", Query: true, Own: func(_ context.Context, w io.Writer, o Options) error {
		_, err := io.WriteString(w, "own line\n")
		return err
	}}
	for _, c := range []struct {
		path string
		code int
		want string
	}{
		{"/logs/", 200, `<a href="syslog">syslog</a>`},
		{"/logs/syslog", 200, "the syslog\n"},
		{"/logs/app/", 200, `<a href="app.log">`},
		{"/logs/app", 301, ""},
		{"/logs/app/app.log", 200, "the app\n"},
		{"/logs/containers/a.log", 200, "a pod\n"},
		{"/logs/relative", 200, "the app\n"},
		{"/logs/dirlink/app.log", 200, "the app\n"},
		{"/logs/none", 404, ""},
		{"/logs/evil", 404, ""},
		{"/logs/evildir/shadow", 404, ""},
		{"/logs/sibling", 404, ""},
		{"/logs/loop", 500, ""},
		{"/logs/../../etc/shadow", 404, ""},
		{"/logs/?query=/syslog", 200, "the syslog\n"},
		{"/logs/?query=/app/app.log", 200, "the app\n"},
		{"/logs/?query=/../../etc/shadow", 404, ""},
		{"/logs/?query=/evil", 404, ""},
		{"/logs/?query=kubelet", 200, "own line\n"},
		{"/logs/?query=kubelet&tailLines=3", 200, "own line\n"},
		{"/logs/?query=bowline.service", 200, "own line\n"},
		{"/logs/?query=sshd&tailLines=3", 200, "from the journal\n"},
		{"/logs/?query=syslog", 200, "the syslog\n"},
		{"/logs/?query=app", 200, "the app\n"},
		{"/logs/?query=nothing", 200, "log not found for nothing"},
		{"/logs/?query=syslog&tailLines=3", 200, "try without specifying options"},
		{"/logs/?query", 400, "may not be empty"},
		{"/logs/?query=kubelet&boot=1", 406, "boot"},
		{"/logs/syslog?query=kubelet", 406, "path not allowed"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", c.path, nil))
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.want) || strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%s: %d %q, want %d %q", c.path, w.Code, w.Body, c.code, c.want)
		}
	}
	if len(b.ran) != 1 || b.ran[0] != "timeout -s KILL 30 journalctl --utc --no-pager --output=short-precise --pager-end --lines=3 --unit=sshd" {
		t.Errorf("ran %q", b.ran)
	}
	h.Query = false
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/logs/?query=kubelet", nil))
	if w.Code != 200 || strings.Contains(w.Body.String(), "own line") || !strings.Contains(w.Body.String(), "syslog") {
		t.Errorf("a query that is not enabled: %d %q", w.Code, w.Body)
	}
}
