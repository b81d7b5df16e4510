package vktest

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
)

// wire is the connection to the API server: it counts, cuts and breaks requests.
type wire struct {
	mu    sync.Mutex
	log   []string // "PUT /api/v1/namespaces/x/pods/y/status"
	cut   bool     // pod lists and watches fail, open watches end
	gone  bool     // the next watch that resumes gets 410
	open  map[*cuttable]bool
	fault func(*http.Request) *http.Response
}

func (w *wire) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		pods := r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/pods")
		watch := pods && r.URL.Query().Get("watch") != ""
		w.mu.Lock()
		w.log = append(w.log, r.Method+" "+r.URL.Path)
		cut, fault := w.cut, w.fault
		resumed := watch && w.gone && r.URL.Query().Get("sendInitialEvents") == ""
		if resumed {
			w.gone = false
		}
		w.mu.Unlock()
		if pods && cut {
			return nil, errors.New("the wire is cut")
		}
		if resumed {
			return answer(r, http.StatusGone, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old resource version"}`), nil
		}
		if fault != nil {
			if resp := fault(r); resp != nil {
				return resp, nil
			}
		}
		resp, err := next.RoundTrip(r)
		if err == nil && watch {
			resp.Body = w.track(resp.Body)
		}
		return resp, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(r *http.Request, code int, body string) *http.Response {
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewBufferString(body))}
}

// cuttable is a response body that can be cut like a lost connection.
type cuttable struct {
	io.ReadCloser
	lost chan struct{}
	once sync.Once
}

func (c *cuttable) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	select {
	case <-c.lost:
		return 0, io.ErrUnexpectedEOF
	default:
		return n, err
	}
}

func (w *wire) track(body io.ReadCloser) io.ReadCloser {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		w.open = map[*cuttable]bool{}
	}
	c := &cuttable{ReadCloser: body, lost: make(chan struct{})}
	w.open[c] = true
	return c
}

// lose cuts the pod watch.
func (w *wire) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for c := range w.open {
		c.once.Do(func() { close(c.lost) })
		c.ReadCloser.Close()
		delete(w.open, c)
	}
}

// restore restores the connection, so late that the watch cannot resume: what was missed shows only
// as the difference of two lists.
func (w *wire) restore() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut, w.gone = false, true
}

func (w *wire) breakWith(f func(*http.Request) *http.Response) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = f
}

// noStatus is a fault that refuses each write of a status.
func noStatus(r *http.Request) *http.Response {
	if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/status") {
		return answer(r, 500, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":500}`)
	}
	return nil
}

// count is how many requests had this method and a path that ends or begins with part.
func (w *wire) count(method, part string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, l := range w.log {
		if strings.HasPrefix(l, method+" ") && strings.Contains(l, part) {
			n++
		}
	}
	return n
}
