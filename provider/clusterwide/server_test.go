package clusterwide

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// server is an API server with Services and RuntimeClasses, as far as informers need it: lists,
// watches that begin with all objects, and watches that continue from a version.
type server struct {
	*httptest.Server
	mu      sync.Mutex
	version int
	objects map[string]map[string]any // resource -> name -> object
	events  map[string][]event        // by resource, all events so far
	changed chan struct{}             // closed and replaced at each change
	asked   map[string]int            // "resource what who"; what is one, all or on
	open    map[string]int            // open watches, by "resource who"
	refused map[string]int            // client to status code
	lost    map[string]bool           // clients whose connection is broken
}

type event struct {
	version int
	object  any
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{objects: map[string]map[string]any{}, events: map[string][]event{}, changed: make(chan struct{}),
		asked: map[string]int{}, open: map[string]int{}, refused: map[string]int{}, lost: map[string]bool{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// client returns a client with the identity who.
func (s *server) client(t *testing.T, who string) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL, BearerToken: who, QPS: -1,
		WrapTransport: func(next http.RoundTripper) http.RoundTripper { return &way{s, who, next} }})
	testutil.Must(t, err)
	return c
}

// way is the connection of one client to the server, as through a proxy.
type way struct {
	*server
	who  string
	next http.RoundTripper
}

func (w *way) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	lost := w.lost[w.who]
	w.mu.Unlock()
	if lost {
		return nil, errors.New("the proxy does not work")
	}
	return w.next.RoundTrip(r)
}

func (s *server) cluster() Cluster { return Cluster{UID: "u", Server: s.URL} }

// add creates a Service or a RuntimeClass.
func (s *server) add(resource, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	meta := metav1.ObjectMeta{Name: name, ResourceVersion: strconv.Itoa(s.version), Annotations: map[string]string{"large": "text"}}
	var object any
	switch resource {
	case "services":
		meta.Namespace = "shop"
		object = &v1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta}
	default:
		object = &nodev1.RuntimeClass{TypeMeta: metav1.TypeMeta{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClass"}, ObjectMeta: meta, Handler: "h-" + name}
	}
	if s.objects[resource] == nil {
		s.objects[resource] = map[string]any{}
	}
	s.objects[resource][name] = object
	s.events[resource] = append(s.events[resource], event{s.version, object})
	s.notify()
}

// change changes the server's behaviour, and notifies open watches.
func (s *server) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.notify()
}

func (s *server) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// count sums up asked over the keys with this prefix.
func (s *server) count(prefix string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, times := range s.asked {
		if strings.HasPrefix(key, prefix) {
			n += times
		}
	}
	return n
}

// watching are the clients with an open watch of a resource.
func (s *server) watching(resource string) (who []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, n := range s.open {
		if name, ok := strings.CutPrefix(key, resource+" "); ok {
			for range n {
				who = append(who, name)
			}
		}
	}
	slices.Sort(who)
	return who
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, q := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), r.URL.Query()
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	w.Header().Set("Content-Type", "application/json")
	s.mu.Lock()
	code := s.refused[who]
	what := "all"
	switch {
	case q.Get("limit") == "1":
		what = "one"
	case q.Get("watch") != "" && q.Get("sendInitialEvents") != "true":
		what = "on"
	}
	s.asked[fmt.Sprintf("%s %s %s", resource, what, who)]++
	list := slices.Collect(maps.Values(s.objects[resource]))
	version := s.version
	s.mu.Unlock()
	switch {
	case code != 0:
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q}`, code, http.StatusText(code))
	case q.Get("watch") != "":
		s.serveWatch(w, r, resource, who)
	default:
		kind, group := "ServiceList", "v1"
		if resource != "services" {
			kind, group = "RuntimeClassList", "node.k8s.io/v1"
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind, "apiVersion": group, "metadata": map[string]any{"resourceVersion": strconv.Itoa(version)}, "items": list})
	}
}

// serveWatch sends the events after a version until the client leaves or is refused.
func (s *server) serveWatch(w http.ResponseWriter, r *http.Request, resource, who string) {
	s.change(func() { s.open[resource+" "+who]++ })
	defer s.change(func() { s.open[resource+" "+who]-- })
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	initial := r.URL.Query().Get("sendInitialEvents") == "true"
	if initial {
		from = 0
	}
	out := json.NewEncoder(w)
	for {
		s.mu.Lock()
		changed, events, version, refused := s.changed, s.events[resource], s.version, s.refused[who] != 0 || s.lost[who]
		s.mu.Unlock()
		if refused {
			return
		}
		for _, e := range events {
			if e.version > from {
				_ = out.Encode(map[string]any{"type": "ADDED", "object": e.object})
				from = e.version
			}
		}
		if initial {
			initial = false
			kind, group := "Service", "v1"
			if resource != "services" {
				kind, group = "RuntimeClass", "node.k8s.io/v1"
			}
			_ = out.Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{"kind": kind, "apiVersion": group, "metadata": map[string]any{
				"resourceVersion": strconv.Itoa(version), "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}})
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
