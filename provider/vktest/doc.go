// Package vktest demonstrates against a real API server what virtual-kubelet v1.13.0 does that a
// node must not, and that this does not happen behind package provider. Each test runs the
// unmodified controller first and observes the harm, and then Bowline's wrapper without it. If an
// upgrade of virtual-kubelet fixes something, the first half fails and says so.
//
// The tests need BOWLINE_LAB_KUBECONFIG, an administrator's kubeconfig of a cluster for tests
// (bowline lab kubeconfig), and are skipped without it. They create namespaces and nodes named
// vk-*, and remove them.
package vktest
