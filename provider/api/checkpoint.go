package api

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/bowline-k8s/bowline/pod"
)

// checkpoint writes a checkpoint of a container to the host, and answers with its path there. The parameter
// timeout is in seconds.
func (s *Server) checkpoint(w http.ResponseWriter, r *http.Request) {
	namespace, name, container := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
	p, ok := s.cfg.Pods.PodByName(namespace, name)
	if !ok {
		fail(w, &textError{ErrNotFound, "pod does not exist"})
		return
	}
	if pod.Find(pod.AllContainers(&p.Spec), container) == nil {
		fail(w, &textError{ErrNotFound, fmt.Sprintf("container %s does not exist", container)})
		return
	}
	timeout := int64(0)
	if values := r.URL.Query()["timeout"]; len(values) > 0 {
		var err error
		if timeout, err = strconv.ParseInt(values[len(values)-1], 10, 64); err != nil || timeout < 0 {
			fail(w, &textError{ErrBadRequest, "cannot parse value of timeout parameter"})
			return
		}
	}
	c, err := s.cfg.Pods.Container(r.Context(), namespace, name, "", container, false)
	if err == nil && !c.Running {
		err = &textError{ErrNotFound, fmt.Sprintf("container %s does not run", container)}
	}
	at := ""
	if err == nil {
		at, err = s.cfg.Checkpoint(r.Context(), p, container, c.ID, timeout)
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("checkpointing of %s/%s/%s failed (%v)", namespace, name, container, err), statusOf(err))
		return
	}
	writeJSON(w, map[string][]string{"items": {at}})
}
