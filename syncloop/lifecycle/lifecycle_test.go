package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/host"
)

type execFunc func(ctx context.Context, id string, cmd []string) (cri.ExecResult, error)

func (f execFunc) ExecSync(ctx context.Context, id string, cmd []string, _ time.Duration) (cri.ExecResult, error) {
	return f(ctx, id, cmd)
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

func (f dialFunc) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return f(ctx, network, address)
}

var direct = dialFunc((&net.Dialer{}).DialContext)

func aPod(h *v1.LifecycleHandler, preStop bool) (*v1.Pod, *v1.Container) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid"}}
	c := v1.Container{Name: "c", Lifecycle: &v1.Lifecycle{PostStart: h}}
	if preStop {
		c.Lifecycle = &v1.Lifecycle{PreStop: h}
	}
	p.Spec.Containers = []v1.Container{c}
	return p, &p.Spec.Containers[0]
}

func TestExec(t *testing.T) {
	transport := &cri.Error{Method: "ExecSync", Kind: cri.KindTransport, Err: errors.New("gone")}
	for name, c := range map[string]struct {
		res       cri.ExecResult
		err       error
		want      []string // in the error
		transport bool
	}{
		"success":   {cri.ExecResult{}, nil, nil, false},
		"exit code": {cri.ExecResult{ExitCode: 3, Stdout: []byte("out "), Stderr: []byte("bad")}, nil, []string{"exited with 3: bad", `message: "out bad"`, `Pod "p_ns(uid)"`}, false},
		"transport": {cri.ExecResult{}, transport, []string{"no answer"}, true},
		"long":      {cri.ExecResult{ExitCode: 1, Stderr: []byte(strings.Repeat("x", 1<<20))}, nil, []string{"xxx"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"do", "it"}}}
			r := Runner{Dial: direct, Exec: execFunc(func(_ context.Context, id string, cmd []string) (cri.ExecResult, error) {
				if id != "id" || strings.Join(cmd, " ") != "do it" {
					t.Errorf("ran %v in %q", cmd, id)
				}
				return c.res, c.err
			})}
			for _, preStop := range []bool{false, true} {
				p, con := aPod(h, preStop)
				msg, err := r.Run(t.Context(), p, "id", con, h, "")
				if len(c.want) == 0 {
					if err != nil || msg != "" {
						t.Fatalf("%q, %v", msg, err)
					}
					continue
				}
				var e *Error
				if !errors.As(err, &e) {
					t.Fatalf("error %v", err)
				}
				wantMsg, wantReason := "PostStartHook failed", "FailedPostStartHook"
				if preStop {
					wantMsg, wantReason = "PreStopHook failed", "FailedPreStopHook"
				}
				if msg != wantMsg || e.Message != wantMsg || e.Reason != wantReason || e.Transport != c.transport || cri.IsTransport(err) != c.transport {
					t.Errorf("%q %+v", msg, e)
				}
				for _, s := range c.want {
					if !strings.Contains(err.Error(), s) {
						t.Errorf("%q lacks %q", err, s)
					}
				}
				if len(err.Error()) > 3*maxOutput {
					t.Errorf("an error of %d bytes", len(err.Error()))
				}
			}
		})
	}
}

func get(rawURL string, scheme v1.URIScheme) (*v1.LifecycleHandler, string) {
	hostport := strings.TrimPrefix(strings.TrimPrefix(rawURL, "http://"), "https://")
	ip, port, _ := net.SplitHostPort(hostport)
	return &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{
		Path: "/hook?a=b", Port: intstr.Parse(port), Scheme: scheme, HTTPHeaders: []v1.HTTPHeader{{Name: "Authorization", Value: "secret"}},
	}}, ip
}

func TestHTTPGet(t *testing.T) {
	var got []string
	serve := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, fmt.Sprint(r.Method, " ", r.URL, " ", r.UserAgent(), " ", r.Header.Get("Authorization")))
		w.WriteHeader(http.StatusInternalServerError) // any answer is a success
	})
	plain, secure := httptest.NewServer(serve), httptest.NewTLSServer(serve)
	defer plain.Close()
	defer secure.Close()
	for name, c := range map[string]struct {
		url    string
		scheme v1.URIScheme
		auth   string
	}{
		"http":           {plain.URL, v1.URISchemeHTTP, "secret"},
		"https":          {secure.URL, v1.URISchemeHTTPS, "secret"},
		"https to plain": {plain.URL, v1.URISchemeHTTPS, ""}, // the credentials are for TLS only
	} {
		got = nil
		h, ip := get(c.url, c.scheme)
		p, con := aPod(h, false)
		fallbacks := 0
		var events []string
		r := Runner{Dial: direct, Fallback: func() { fallbacks++ }, Event: func(p *v1.Pod, kind, reason, message string) {
			events = append(events, strings.Join([]string{p.Name, kind, reason, message}, " "))
		}}
		if _, err := r.Run(t.Context(), p, "id", con, h, ip); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var told []string
		if name == "https to plain" {
			told = []string{"p Warning LifecycleHTTPFallback the HTTPS lifecycle hook " + strings.TrimPrefix(c.url, "http://") + " answered in HTTP, and was called in HTTP"}
		}
		if !slices.Equal(events, told) {
			t.Errorf("%s: events %q, want %q", name, events, told)
		}
		if (fallbacks == 1) != (c.auth == "") {
			t.Errorf("%s: %d fallbacks", name, fallbacks)
		}
		if want := "GET /hook?a=b kube-lifecycle/1.37 " + c.auth; len(got) != 1 || got[0] != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestHTTPGetWithoutAnAddressOrAMachine(t *testing.T) {
	h, ip := get("http://127.0.0.1:1", v1.URISchemeHTTP)
	p, con := aPod(h, false)
	r := Runner{Dial: dialFunc(func(context.Context, string, string) (net.Conn, error) { return nil, host.ErrUnreachable })}
	if _, err := r.Run(t.Context(), p, "id", con, h, ""); err == nil {
		t.Error("no error without an address")
	}
	var e *Error
	if _, err := r.Run(t.Context(), p, "id", con, h, ip); !errors.As(err, &e) || !e.Transport {
		t.Errorf("an unreachable machine: %v", err)
	}
	h.HTTPGet.Port = intstr.FromString("web")
	if _, err := r.Run(t.Context(), p, "id", con, h, ip); err == nil || !strings.Contains(err.Error(), `port "web" not found`) {
		t.Errorf("a port that is not named: %v", err)
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 7}}
		p, con := aPod(h, true)
		cuts := 0
		r, began := Runner{SleepCut: func() { cuts++ }}, time.Now()
		if _, err := r.Run(t.Context(), p, "id", con, h, ""); err != nil || time.Since(began) != 7*time.Second {
			t.Errorf("slept %v: %v", time.Since(began), err)
		}
		if cuts != 0 {
			t.Error("a whole sleep was cut")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Run(ctx, p, "id", con, h, ""); err == nil || !strings.Contains(err.Error(), "terminated before sleep hook finished") {
			t.Errorf("cut short: %v", err)
		}
		if cuts != 1 {
			t.Errorf("%d sleeps were cut", cuts)
		}
	})
}

func TestTCPSocketFailsAsInAKubelet(t *testing.T) {
	h := &v1.LifecycleHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(80)}}
	p, con := aPod(h, false)
	if msg, err := (&Runner{}).Run(t.Context(), p, "id", con, h, "10.0.0.5"); err == nil || msg == "" {
		t.Errorf("%q, %v", msg, err)
	}
}
