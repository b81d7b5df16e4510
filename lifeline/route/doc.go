// Package route decides who owns an address: a Service, a pod of the cluster, a pod of a remote host, or
// none of them.
//
//	Services   the Services of a cluster with their endpoints, by address
//	Network    the prefixes and addresses of a cluster
//	State      both, and one remote host
//	Table      what the helper on that host serves by itself, and what it redirects
//	Decide     what the exit dials for a flow of that host
//	Overlap    which prefixes of the cluster are also networks of that host
//
// A helper redirects what Table has, and the exit decides again with Decide, because it trusts no helper.
// The exit runs beside what can reach the cluster's control plane and a cloud's metadata server. So it dials
// only the cluster's prefixes and what the Host object allows, and inside of those never an address of the
// never list: see never.go.
//
// The package is pure: what it decides depends on its arguments alone. Services and Network are immutable,
// so that all hosts of a cluster share them.
package route
