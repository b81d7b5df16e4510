// Package api is the HTTPS API that a kubelet offers to the API server, metrics
// collectors and the operator, on the node's kubelet port.
//
// routes.go lists every path of that API with what a caller must be allowed to
// do for it. A caller is authenticated by a client certificate of the configured
// CA or by a token that the API server vouches for (TokenReview), and authorized
// by the API server (SubjectAccessReview); see authn.go and authz.go.
package api
