// Package provider is the side of a node that the cluster sees: virtual-kubelet's PodController and
// NodeController behind wrapped interfaces, the node object, the lease and the kubelet's HTTPS API
// (package provider/api).
//
//	         pod informer ─────────────► syncloop/podconfig (source api)
//	              │                              ▲
//	virtual-kubelet's PodController              │ PodChanged
//	   hooks  (pods.go)  ────────────────────────┤
//	   client (gate.go)  UpdateStatus ───────────┘
//	                     Delete ─────────────────► syncloop (TerminateRequested)
//
//	virtual-kubelet's NodeController
//	   provider (nodestatus.go)  full nodes, sent by a goroutine of its own
//	   client   (nodeclient.go)  addresses, transition times, no last-applied annotations
//	   lease    with a client of its own
//
// The controllers are built with their own constructors and never patched. What they would do that a
// node must not is intercepted in the interfaces that they get. provider/vktest demonstrates each
// such harm against a real API server, and that it does not occur here.
package provider
