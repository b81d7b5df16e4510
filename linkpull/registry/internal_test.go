package registry

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

func TestParseChallenges(t *testing.T) {
	for _, c := range []struct {
		values []string
		want   []challenge
	}{
		{nil, nil},
		{[]string{""}, nil},
		{[]string{`Bearer realm="https://auth.example/token",service="registry, the \"best\"" , scope=x`},
			[]challenge{{"bearer", map[string]string{"realm": "https://auth.example/token",
				"service": `registry, the "best"`, "scope": "x"}}}},
		{[]string{`Basic realm="a", BEARER Realm="b"`, "Negotiate"},
			[]challenge{{"basic", map[string]string{"realm": "a"}}, {"bearer", map[string]string{"realm": "b"}},
				{"negotiate", map[string]string{}}}},
		{[]string{`Bearer realm="open`}, []challenge{{"bearer", map[string]string{}}}},
		{[]string{`Bearer realm="a",realm="b"`}, []challenge{{"bearer", map[string]string{"realm": "a"}}}},
		{[]string{"Negotiate dG9rZW4=", "Basic"}, []challenge{{"negotiate", map[string]string{}}, {"basic",
			map[string]string{}}}},
		{[]string{"Bearer realm=\"\\"}, []challenge{{"bearer", map[string]string{}}}},
	} {
		got := parseChallenges(c.values)
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %v, want %v", c.values, got, c.want)
		}
	}
}

// FuzzChallenges: any header is read without a panic, within the bound, and what was read survives being
// written and read again.
func FuzzChallenges(f *testing.F) {
	corpus.Add(f)
	f.Add(`Bearer realm="https://auth.example/token",service="a, \"b\"", scope=x`)
	f.Add(`Basic realm="a", Bearer realm="b"`)
	f.Add(`Negotiate dG9rZW4=`)
	f.Fuzz(func(t *testing.T, header string) {
		read := parseChallenges([]string{header})
		if len(read) > maxChallenges {
			t.Fatalf("%d challenges", len(read))
		}
		for _, c := range read {
			written := c.scheme
			sep := " "
			for k, v := range c.params {
				written += sep + k + `="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v) + `"`
				sep = ", "
			}
			if again := parseChallenges([]string{written}); len(again) != 1 || !reflect.DeepEqual(again[0], c) {
				t.Fatalf("%q became %v, and then %v", header, c, again)
			}
		}
	})
}

func TestParseRange(t *testing.T) {
	for text, want := range map[string]struct {
		first, total int64
		ok           bool
	}{
		"bytes 5-9/10": {5, 10, true}, "bytes 0-0/*": {0, -1, true}, "bytes 5-9/": {5, 0, false}, "": {},
		"bytes */10":    {},
		"bytes -5-9/10": {}, "lines 5-9/10": {}, "bytes 5/10": {}, "bytes 99999999999999999999-1/2": {},
	} {
		first, total, ok := parseRange(text)
		if ok != want.ok || ok && (first != want.first || total != want.total) {
			t.Errorf("%q: %d of %d, %v", text, first, total, ok)
		}
	}
}

// FuzzRange: what is accepted was meant.
func FuzzRange(f *testing.F) {
	corpus.Add(f)
	f.Add("bytes 5-9/10")
	f.Add("bytes 5-9/*")
	f.Fuzz(func(t *testing.T, text string) {
		first, total, ok := parseRange(text)
		if ok && (first < 0 || total < -1) {
			t.Fatalf("%q: %d of %d", text, first, total)
		}
		if _, err := strconv.Atoi(text); ok && err == nil {
			t.Fatalf("%q is a number", text)
		}
	})
}

// TestStall: a body that stops sending ends; one whose reader is slow does not.
func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		from, to := io.Pipe()
		// The transport closes the body when the request's context ends.
		context.AfterFunc(ctx, func() { _ = from.CloseWithError(ctx.Err()) })
		b := &body{ctx: ctx, cancel: cancel, what: "layer", from: from, left: 10}
		b.stall = time.AfterFunc(stallTime, func() { cancel(errStalled) })
		b.stall.Stop()
		go func() { _, _ = to.Write([]byte("12345")) }()
		p := make([]byte, 5)
		_, err := b.Read(p)
		testutil.Must(t, err)
		time.Sleep(10 * stallTime)
		go func() { _, _ = to.Write([]byte("6")) }()
		_, err = b.Read(p)
		testutil.Must(t, err)
		began := time.Now()
		var e *Error
		if _, err := b.Read(p); !errors.As(err, &e) || !errors.Is(err, errStalled) || !e.Temporary() ||
			time.Since(began) != stallTime {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		testutil.Must(t, b.Close())
	})
}
