package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (s *Server) listPods(w http.ResponseWriter, _ *http.Request) { writePods(w, s.cfg.Pods.Pods()) }

func (s *Server) runningPods(w http.ResponseWriter, r *http.Request) {
	pods, err := s.cfg.Pods.RunningPods(r.Context())
	if err != nil {
		fail(w, err)
		return
	}
	writePods(w, pods)
}

// allocatedPods lists the pods as they are allocated, without their status.
func (s *Server) allocatedPods(w http.ResponseWriter, _ *http.Request) {
	pods := s.cfg.Pods.AllocatedPods()
	for i, p := range pods {
		pods[i] = withoutStatus(p)
	}
	writePods(w, pods)
}

// allocatedPod shows one of these pods.
func (s *Server) allocatedPod(w http.ResponseWriter, r *http.Request) {
	for _, p := range s.cfg.Pods.AllocatedPods() {
		if p.Namespace != r.PathValue("namespace") || p.Name != r.PathValue("pod") {
			continue
		}
		if uid := r.PathValue("uid"); uid != "" && string(p.UID) != uid {
			continue // a new pod of this name may exist beside the former one
		}
		p = withoutStatus(p)
		p.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
		writeJSON(w, p)
		return
	}
	http.Error(w, "pod not found", http.StatusNotFound)
}

// withoutStatus returns a shallow copy of the pod, because others share the pod.
func withoutStatus(p *v1.Pod) *v1.Pod {
	out := *p
	out.Status = v1.PodStatus{}
	return &out
}

func (s *Server) why(w http.ResponseWriter, r *http.Request) {
	report, err := s.cfg.Pods.Why(r.Context(), r.PathValue("namespace"), r.PathValue("pod"))
	if err != nil {
		fail(w, err)
		return
	}
	writeJSON(w, report)
}

func (s *Server) configz(w http.ResponseWriter, _ *http.Request) {
	shown, err := s.cfg.Configz()
	if err != nil {
		fail(w, fmt.Errorf("show the configuration: %w", err))
		return
	}
	writeJSON(w, shown)
}

// healthz answers "ok", or 500 with a line for each check. The log and the node's conditions have
// the cause of a failure.
func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	checks := []struct {
		name string
		err  error
	}{{"ping", nil}, {"log", nil}, {"syncloop", s.cfg.SyncLoop()}}
	if only := r.PathValue("check"); only != "" {
		for _, c := range checks {
			if c.name == only {
				s.cfg.Checked(c.name, c.err)
			}
			switch {
			case c.name != only:
			case c.err != nil:
				http.Error(w, fmt.Sprintf("internal server error: %v", c.err), http.StatusInternalServerError)
				return
			default:
				fmt.Fprint(w, "ok")
				return
			}
		}
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	}
	var lines strings.Builder
	failed := false
	for _, c := range checks {
		s.cfg.Checked(c.name, c.err)
		if c.err != nil {
			failed = true
			fmt.Fprintf(&lines, "[-]%s failed: %v\n", c.name, c.err)
		} else {
			fmt.Fprintf(&lines, "[+]%s ok\n", c.name)
		}
	}
	switch {
	case failed:
		http.Error(w, lines.String()+"healthz check failed", http.StatusInternalServerError)
	case r.URL.Query().Has("verbose"):
		fmt.Fprint(w, lines.String()+"healthz check passed\n")
	default:
		fmt.Fprint(w, "ok")
	}
}

func writePods(w http.ResponseWriter, pods []*v1.Pod) {
	list := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: make([]v1.Pod, 0, len(pods))}
	for _, p := range pods {
		list.Items = append(list.Items, *p)
	}
	writeJSON(w, &list)
}

func writeJSON(w http.ResponseWriter, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		fail(w, fmt.Errorf("encode the answer: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(data) // ignore a caller that has gone away
}
