package hostadmin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
)

// View is the hosts of a cluster with their nodes and pods at one time.
type View struct {
	Hosts []HostView
	Pods  []v1.Pod
}

// HostView is a host of a Host object, or of a Bowline's configuration file. Of the latter the
// cluster shows only the node.
type HostView struct {
	Name string
	Host *v1alpha1.Host // nil: from a configuration file
	Node *v1.Node       // nil: it has none
}

// annotationDriver is on every node of Bowline.
const annotationDriver = "bowline.io/driver"

// atOnce is how many lists of pods run in parallel.
const atOnce = 8

// Look reads the hosts, their nodes and the pods on them. It reads from the API server's watch
// cache (resourceVersion 0), which may be slightly stale, and is cheap.
func Look(ctx context.Context, hosts Hosts, client kubernetes.Interface) (*View, error) {
	fromMemory := metav1.ListOptions{ResourceVersion: "0"}
	v := &View{}
	list, err := hosts.List(ctx, fromMemory)
	if err != nil && !apierrors.IsNotFound(err) { // without the resource there may still be hosts of a configuration file
		return nil, fmt.Errorf("list the Hosts: %w", err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, fromMemory)
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	v.Hosts = join(list, nodes.Items)
	err = v.pods(ctx, client, fromMemory)
	return v, err
}

// join joins hosts and nodes by name.
func join(list *v1alpha1.HostList, nodes []v1.Node) []HostView {
	var views []HostView
	taken := map[string]bool{}
	if list != nil {
		for i := range list.Items {
			h := HostView{Name: list.Items[i].Name, Host: &list.Items[i]}
			for j := range nodes {
				if nodes[j].Name == nodeName(h.Host) && nodes[j].Annotations[v1alpha1.HostAnnotation] == h.Name {
					h.Node = &nodes[j]
					taken[nodes[j].Name] = true
				}
			}
			views = append(views, h)
		}
	}
	for j := range nodes {
		if !taken[nodes[j].Name] && nodes[j].Annotations[annotationDriver] != "" {
			views = append(views, HostView{Name: nodes[j].Name, Node: &nodes[j]})
		}
	}
	slices.SortFunc(views, func(a, b HostView) int { return strings.Compare(a.Name, b.Name) })
	return views
}

// pods lists node by node, because most pods of a big cluster are on other nodes.
func (v *View) pods(ctx context.Context, client kubernetes.Interface, opts metav1.ListOptions) error {
	var mu sync.Mutex
	var all sync.WaitGroup
	var first error
	turn := make(chan struct{}, atOnce)
	for _, h := range v.Hosts {
		if h.Node == nil {
			continue
		}
		all.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			o := opts
			o.FieldSelector = "spec.nodeName=" + h.Node.Name
			list, err := client.CoreV1().Pods("").List(ctx, o)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				v.Pods = append(v.Pods, list.Items...)
			case first == nil:
				first = fmt.Errorf("list the pods of node %s: %w", h.Node.Name, err)
			}
		})
	}
	all.Wait()
	slices.SortFunc(v.Pods, func(a, b v1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return first
}

// condition returns a condition of a node, or nil.
func condition(n *v1.Node, kind v1.NodeConditionType) *v1.NodeCondition {
	if n == nil {
		return nil
	}
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == kind {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// link is Up, Down, Local, or "-" if unknown.
func (h *HostView) link() string {
	if h.Host != nil && h.Host.Status.Link != nil {
		return string(h.Host.Status.Link.State)
	}
	if c := condition(h.Node, "LinkUp"); c != nil {
		if c.Status == v1.ConditionTrue {
			return string(v1alpha1.LinkUp)
		}
		return string(v1alpha1.LinkDown)
	}
	return "-"
}

// reason is that of the condition Ready.
func (h *HostView) reason() string {
	if h.Host != nil {
		if c := meta.FindStatusCondition(h.Host.Status.Conditions, v1alpha1.ConditionReady); c != nil {
			return c.Reason
		}
		return "-"
	}
	c := condition(h.Node, v1.NodeReady)
	switch {
	case c == nil:
		return "-"
	case c.Status == v1.ConditionTrue:
		return "NodeReady"
	}
	return c.Reason
}
