package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/kubeclient"
	"github.com/bowline-k8s/bowline/provider/clusterwide"
)

// kinds are the kinds of the resources that the API server has.
var kinds = map[string]schema.GroupVersionKind{
	"services":        {Version: "v1", Kind: "Service"},
	"endpointslices":  {Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice"},
	"servicecidrs":    {Group: "networking.k8s.io", Version: "v1", Kind: "ServiceCIDR"},
	"networkpolicies": {Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"},
	"namespaces":      {Version: "v1", Kind: "Namespace"},
	"pods":            {Version: "v1", Kind: "Pod"},
	"nodes":           {Version: "v1", Kind: "Node"},
}

// apiServer is an API server as far as informers need it.
type apiServer struct {
	*httptest.Server
	mu      sync.Mutex
	version int
	objects map[string]map[string]runtime.Object // by resource, then by namespace and name
	events  map[string][]event                   // by resource
	changed chan struct{}                        // closed and replaced at each change
	reads   map[string]int                       // reads of all objects, by resource
	open    map[string]int                       // open watches, by resource
	fields  map[string]bool                      // field selectors
	refused map[string]bool                      // "who resource"
}

type event struct {
	version int
	kind    string
	object  runtime.Object
}

func newAPIServer(t *testing.T, objects ...runtime.Object) *apiServer {
	t.Helper()
	s := &apiServer{objects: map[string]map[string]runtime.Object{}, events: map[string][]event{}, changed: make(chan struct{}),
		reads: map[string]int{}, open: map[string]int{}, fields: map[string]bool{}, refused: map[string]bool{}}
	s.put(t, objects...)
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// config is that of a Reader whose client has the identity who.
func (s *apiServer) config(t *testing.T, who string) Config {
	t.Helper()
	c, err := kubeclient.New(&rest.Config{Host: s.URL, BearerToken: who, QPS: -1})
	testutil.Must(t, err)
	return Config{Cluster: clusterwide.Cluster{UID: "u", Server: s.URL}, Client: c}
}

// put creates or updates objects.
func (s *apiServer) put(t *testing.T, objects ...runtime.Object) {
	t.Helper()
	for _, o := range objects {
		s.change(t, o, func(resource, key string, object runtime.Object) {
			kind := "ADDED"
			if s.objects[resource] == nil {
				s.objects[resource] = map[string]runtime.Object{}
			}
			if s.objects[resource][key] != nil {
				kind = "MODIFIED"
			}
			s.objects[resource][key] = object
			s.events[resource] = append(s.events[resource], event{s.version, kind, object})
		})
	}
}

func (s *apiServer) remove(t *testing.T, o runtime.Object) {
	t.Helper()
	s.change(t, o, func(resource, key string, object runtime.Object) {
		delete(s.objects[resource], key)
		s.events[resource] = append(s.events[resource], event{s.version, "DELETED", object})
	})
}

func (s *apiServer) change(t *testing.T, o runtime.Object, f func(resource, key string, object runtime.Object)) {
	t.Helper()
	o = o.DeepCopyObject()
	found, _, err := scheme.Scheme.ObjectKinds(o)
	testutil.Must(t, err)
	o.GetObjectKind().SetGroupVersionKind(found[0])
	m, err := meta.Accessor(o)
	testutil.Must(t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	m.SetResourceVersion(strconv.Itoa(s.version))
	for resource, kind := range kinds {
		if kind == found[0] {
			f(resource, m.GetNamespace()+"/"+m.GetName(), o)
		}
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// counted reads a counter.
func (s *apiServer) counted(counts map[string]int, resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return counts[resource]
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q, resource := r.URL.Query(), r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	who := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	w.Header().Set("Content-Type", "application/json")
	s.mu.Lock()
	refused := s.refused[who+" "+resource]
	s.fields[resource+" "+q.Get("fieldSelector")] = true
	watches := q.Get("watch") != ""
	if !refused && (q.Get("sendInitialEvents") == "true" || !watches && q.Get("limit") != "1") {
		s.reads[resource]++
	}
	list, version := slices.Collect(maps.Values(s.objects[resource])), s.version
	s.mu.Unlock()
	kind := kinds[resource]
	switch {
	case refused:
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"reason":"Forbidden"}`)
	case watches:
		s.serveWatch(w, r, resource)
	default:
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind.Kind + "List", "apiVersion": kind.GroupVersion().String(),
			"metadata": map[string]any{"resourceVersion": strconv.Itoa(version)}, "items": list})
	}
}

// serveWatch sends the events after a version until the client leaves.
func (s *apiServer) serveWatch(w http.ResponseWriter, r *http.Request, resource string) {
	count := func(n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open[resource] += n
	}
	count(1)
	defer count(-1)
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	initial := r.URL.Query().Get("sendInitialEvents") == "true"
	if initial {
		from = 0
	}
	out := json.NewEncoder(w)
	for {
		s.mu.Lock()
		changed, events, version := s.changed, slices.Clone(s.events[resource]), s.version
		s.mu.Unlock()
		for _, e := range events {
			if e.version > from {
				_ = out.Encode(map[string]any{"type": e.kind, "object": e.object})
				from = e.version
			}
		}
		if initial {
			initial = false
			kind := kinds[resource]
			_ = out.Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{"kind": kind.Kind, "apiVersion": kind.GroupVersion().String(),
				"metadata": map[string]any{"resourceVersion": strconv.Itoa(version), "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}})
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
