// Package vktest shows, against a real API server, what virtual-kubelet v1.13.0
// does that a node must not, and that it does not happen behind package provider.
// Each test runs the controller as it comes first and sees the harm, then ours
// and sees its absence; if an upgrade of virtual-kubelet mends something, the
// first half fails and says so.
//
// The tests need BOWLINE_LAB_KUBECONFIG, an administrator's kubeconfig of a
// cluster that may be played with (bowline lab kubeconfig), and are skipped
// without it. They make namespaces and nodes named vk-*, and remove them.
package vktest
