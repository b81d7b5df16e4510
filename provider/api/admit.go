package api

import (
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/klog/v2"
)

var verbs = map[string]string{
	http.MethodGet:    "get",
	http.MethodPost:   "create",
	http.MethodPut:    "update",
	http.MethodPatch:  "patch",
	http.MethodDelete: "delete",
}

// admit authenticates and authorizes a request. If that fails it writes 401, 403 or 500 and returns
// false.
func (s *Server) admit(w http.ResponseWriter, r *http.Request, subresources []string) bool {
	logger := klog.FromContext(r.Context())
	r, done := admission(r)
	defer done()
	who, ok, err := s.cfg.Authenticator.AuthenticateRequest(r)
	if err != nil || !ok {
		if err != nil {
			logger.V(2).Info("Refused an unauthenticated request to the kubelet API", "path", r.URL.Path, "from", r.RemoteAddr, "err", err)
		}
		if stranger(r.Context()) {
			// Neither the rest of the body nor pipelined requests are read.
			w.Header().Set("Connection", "close")
		}
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return false
	}
	for _, sub := range subresources {
		decision, _, err := s.cfg.Authorizer.Authorize(r.Context(), s.attributes(who.User, r, sub))
		if err != nil {
			logger.Error(err, "Failed to authorize a request to the kubelet API", "path", r.URL.Path, "user", who.User.GetName())
			http.Error(w, fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource=%s)", who.User.GetName(), verbs[r.Method], sub), http.StatusInternalServerError)
			return false
		}
		if decision == authorizer.DecisionAllow {
			return true
		}
	}
	http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", who.User.GetName(), verbs[r.Method], subresources), http.StatusForbidden)
	return false
}

func (s *Server) attributes(u user.Info, r *http.Request, subresource string) authorizer.Attributes {
	return authorizer.AttributesRecord{
		User:            u,
		Verb:            verbs[r.Method],
		APIVersion:      "v1",
		Resource:        "nodes",
		Subresource:     subresource,
		Name:            s.cfg.NodeName,
		ResourceRequest: true,
		Path:            r.URL.Path,
	}
}
