// Package provider is the side that the cluster sees: virtual-kubelet's
// PodController and NodeController behind wrapped interfaces, the node object,
// the lease and the kubelet's HTTPS API (package provider/api).
//
//	         pod informer ─────────────► syncloop/config (source api)
//	              │                              ▲
//	virtual-kubelet's PodController              │ PodChanged, TerminateRequested
//	   hooks  (pods.go)  ────────────────────────┤
//	   client (gate.go)  Delete, UpdateStatus ───┘
//
//	virtual-kubelet's NodeController
//	   provider (nodestatus.go)  full nodes, from a goroutine of its own
//	   client   (nodeclient.go)  addresses, transition times, no bookkeeping annotations
//	   lease    with a client of its own
//
// The controllers are built with their own constructors and never patched; what
// they would do that a node must not is turned aside at the interface that they
// are handed. provider/vktest shows each such harm against a real API server,
// and its absence here.
package provider
