package monitoring

import (
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// state exports, of what the API server knows, the series of kube-state-metrics that the rules and
// queries join with a node's.
type state struct {
	r *rig
}

func (state) Describe(chan<- *prometheus.Desc) {} // the series depend on the objects

// Collect reads the objects at each scrape.
func (s state) Collect(to chan<- prometheus.Metric) {
	ctx, client := s.r.t.Context(), s.r.lab.Client
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return // the scrape then lacks the series
	}
	for _, n := range nodes.Items {
		gauge(to, "kube_node_info", 1, "node", n.Name, "internal_ip", n.Status.Addresses[0].Address)
		resources(to, "kube_node_status_allocatable", n.Status.Allocatable, "node", n.Name)
		resources(to, "kube_node_status_capacity", n.Status.Capacity, "node", n.Name)
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for _, p := range pods.Items {
		pod := []string{"namespace", p.Namespace, "pod", p.Name}
		gauge(to, "kube_pod_info", 1, append(pod, "node", p.Spec.NodeName, "host_ip", p.Status.HostIP, "pod_ip", p.Status.PodIP,
			"uid", string(p.UID), "host_network", map[bool]string{true: "true", false: "false"}[p.Spec.HostNetwork])...)
		kind, name := "", ""
		if owner := metav1.GetControllerOf(&p); owner != nil {
			kind, name = owner.Kind, owner.Name
		}
		gauge(to, "kube_pod_owner", 1, append(pod, "owner_kind", kind, "owner_name", name, "owner_is_controller", "true")...)
		gauge(to, "kube_pod_status_phase", 1, append(pod, "phase", string(p.Status.Phase))...)
		for _, c := range p.Spec.Containers {
			in := append(pod, "container", c.Name, "node", p.Spec.NodeName)
			resources(to, "kube_pod_container_resource_requests", c.Resources.Requests, in...)
			resources(to, "kube_pod_container_resource_limits", c.Resources.Limits, in...)
		}
	}
	sets, err := client.AppsV1().ReplicaSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for _, set := range sets.Items {
		if owner := metav1.GetControllerOf(&set); owner != nil {
			gauge(to, "kube_replicaset_owner", 1, "namespace", set.Namespace, "replicaset", set.Name, "owner_kind", owner.Kind, "owner_name", owner.Name)
		}
	}
	quotas, err := client.CoreV1().ResourceQuotas("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for _, q := range quotas.Items {
		for kind, list := range map[string]v1.ResourceList{"hard": q.Status.Hard, "used": q.Status.Used} {
			for name, value := range list {
				gauge(to, "kube_resourcequota", value.AsApproximateFloat64(), "namespace", q.Namespace, "resourcequota", q.Name, "resource", string(name), "type", kind)
			}
		}
	}
}

// resources exports quantities as kube-state-metrics does: a series for each resource, with its unit.
func resources(to chan<- prometheus.Metric, name string, list v1.ResourceList, labels ...string) {
	for resource, quantity := range list {
		unit := "byte"
		switch resource {
		case v1.ResourceCPU:
			unit = "core"
		case v1.ResourcePods:
			unit = "integer"
		}
		gauge(to, name, quantity.AsApproximateFloat64(), append(labels[:len(labels):len(labels)], "resource", string(resource), "unit", unit)...)
	}
}

// gauge exports a series; labels are names and values in turn.
func gauge(to chan<- prometheus.Metric, name string, value float64, labels ...string) {
	constant := prometheus.Labels{}
	for i := 0; i < len(labels); i += 2 {
		constant[labels[i]] = labels[i+1]
	}
	to <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, name, nil, constant), prometheus.GaugeValue, value)
}

// serveState serves the series and returns their address.
func (r *rig) serveState() string {
	registry := prometheus.NewRegistry()
	registry.MustRegister(state{r})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(r.t, err)
	server := &http.Server{Handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{})}
	go func() { _ = server.Serve(listener) }() // until the cleanup
	r.t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String()
}
