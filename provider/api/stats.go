package api

import (
	"fmt"
	"net/http"

	"k8s.io/klog/v2"
)

// summary answers the summary API. The parameter only_cpu_and_memory may be in the query or in a
// form.
func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		fail(w, &textError{ErrBadRequest, fmt.Sprintf("parse the form: %v", err)})
		return
	}
	only := r.Form["only_cpu_and_memory"]
	answer, err := s.cfg.Stats.Summary(r.Context(), len(only) == 1 && only[0] == "true")
	if err != nil {
		klog.FromContext(r.Context()).Error(err, "Failed to collect the summary of the node's statistics")
		fail(w, err)
		return
	}
	writeJSON(w, answer)
}
