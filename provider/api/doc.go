// Package api is the HTTPS API that a kubelet offers to the API server, metrics collectors and the
// operator, on the node's kubelet port.
//
// routes.go lists all paths with the permission that each requires. A caller authenticates with a
// client certificate of the configured CA, or with a token that the API server confirms
// (TokenReview). The API server authorizes it (SubjectAccessReview). See authn.go and authz.go.
package api
