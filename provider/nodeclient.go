package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
)

// virtual-kubelet keeps what it last applied, including the whole status, in these annotations, to
// distinguish what it deleted from what others added.
const (
	lastAppliedStatus = "virtual-kubelet.io/last-applied-node-status"
	lastAppliedMeta   = "virtual-kubelet.io/last-applied-object-meta"
)

// nodeClient is the node client that virtual-kubelet gets. It passes calls through, but corrects
// three things in what is sent:
//
//   - status.addresses merges by type in a strategic merge patch, which corrupts two addresses of
//     one type. virtual-kubelet never sees addresses; nodeClient adds them to the patch, as a
//     replacement.
//   - lastTransitionTime of a condition is set to now if the status differs from the server's, and
//     left alone otherwise, no matter which client wrote the server's.
//   - The last-applied annotations are kept in memory instead of on the object: Get returns them to
//     virtual-kubelet, and Patch removes them.
//
// It refuses to read a node object that is not ours (CheckOwn), which also prevents changes to it.
// While another process reports the node (silence), it sends nothing.
type nodeClient struct {
	corev1client.NodeInterface
	addresses func() []v1.NodeAddress
	created   func()              // called when the node was created
	rebooted  func(bootID string) // called when a report has changed the boot ID
	failed    func()              // called when a report could not be written
	now       func() time.Time
	log       *stateLog
	standby   *standby
	startup   *startup

	mu      sync.Mutex
	server  *v1.Node          // as last seen; nil before
	applied map[string]string // the last-applied annotations, for applyTo
	applyTo types.UID
}

func (c *nodeClient) Get(ctx context.Context, name string, o metav1.GetOptions) (*v1.Node, error) {
	n, err := c.NodeInterface.Get(ctx, name, o)
	if err != nil {
		if !errors.IsNotFound(err) { // the caller registers the node then
			c.log.note(ctx, err)
			c.failed()
		}
		return nil, err
	}
	if err := CheckOwn(n); err != nil {
		c.log.note(ctx, err)
		return nil, err // each patch is preceded by a Get
	}
	c.standby.observe(n)
	c.startup.found()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server = n
	out := n.DeepCopy()
	delete(out.Annotations, lastAppliedStatus)
	delete(out.Annotations, lastAppliedMeta)
	if c.applyTo == n.UID {
		for k, v := range c.applied {
			metav1.SetMetaDataAnnotation(&out.ObjectMeta, k, v)
		}
	}
	return out, nil
}

func (c *nodeClient) Create(ctx context.Context, n *v1.Node, o metav1.CreateOptions) (*v1.Node, error) {
	n = n.DeepCopy()
	n.Status.Addresses = c.addresses()
	if c.standby.active() {
		return n, nil
	}
	out, err := c.NodeInterface.Create(ctx, n, o)
	c.log.note(ctx, err)
	if err == nil {
		c.startup.created(c.now())
		klog.FromContext(ctx).Info("Registered the node", "node", klog.KObj(out), "uid", out.UID)
		if c.created != nil {
			c.created()
		}
	}
	return out, err
}

func (c *nodeClient) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, sub ...string) (*v1.Node, error) {
	if pt != types.StrategicMergePatchType || !slices.Equal(sub, []string{"status"}) {
		return c.NodeInterface.Patch(ctx, name, pt, data, o, sub...)
	}
	c.mu.Lock()
	server := c.server
	c.mu.Unlock()
	if server == nil {
		return nil, fmt.Errorf("patch status of node %q: it was never read", name)
	}
	if c.standby.active() {
		return server.DeepCopy(), nil
	}
	fixed, applied, err := rewritePatch(data, server, c.addresses(), c.now())
	if err != nil {
		return nil, fmt.Errorf("patch status of node %q: %w", name, err)
	}
	out, err := c.NodeInterface.Patch(ctx, name, pt, fixed, o, sub...)
	c.log.note(ctx, err)
	if err != nil {
		c.failed()
		return nil, err
	}
	// As a kubelet does, only for a node that was reported with another boot ID before. Only the
	// one report that changes it gets such an answer, so the event is emitted once.
	if before, now := server.Status.NodeInfo.BootID, out.Status.NodeInfo.BootID; before != "" && before != now && c.rebooted != nil {
		c.rebooted(now)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server = out
	if c.applied == nil || c.applyTo != out.UID {
		c.applied, c.applyTo = map[string]string{}, out.UID
	}
	for k, v := range applied {
		c.applied[k] = v
	}
	return out, nil
}

// rewritePatch rewrites a strategic merge patch of a node's status. It returns the last-applied
// annotations that it removed.
func rewritePatch(data []byte, server *v1.Node, addresses []v1.NodeAddress, now time.Time) (fixed []byte, applied map[string]string, err error) {
	var patch map[string]any
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, nil, fmt.Errorf("not a JSON object: %w", err)
	}
	applied = takeAnnotations(patch, server)

	status, _ := patch["status"].(map[string]any)
	if status == nil {
		status = map[string]any{}
	}
	delete(status, "addresses")
	delete(status, "$setElementOrder/addresses")
	if !slices.Equal(server.Status.Addresses, addresses) {
		list := []any{}
		for _, a := range addresses {
			list = append(list, map[string]any{"type": a.Type, "address": a.Address})
		}
		// The directive makes the list replace the server's instead of merging.
		status["addresses"] = append(list, map[string]any{"$patch": "replace"})
	}
	conditions, _ := status["conditions"].([]any)
	for _, item := range conditions {
		c, _ := item.(map[string]any)
		if c == nil || c["$patch"] != nil {
			continue
		}
		// The patch has a status only if it differs from the server's.
		delete(c, "lastTransitionTime")
		if _, changed := c["status"]; changed {
			c["lastTransitionTime"] = now.UTC().Format(time.RFC3339)
		}
	}
	if len(status) > 0 {
		patch["status"] = status
	}
	fixed, err = json.Marshal(patch)
	return fixed, applied, err
}

func takeAnnotations(patch map[string]any, server *v1.Node) map[string]string {
	applied := map[string]string{}
	meta, _ := patch["metadata"].(map[string]any)
	if meta == nil {
		return applied
	}
	annotations, _ := meta["annotations"].(map[string]any)
	if annotations == nil {
		return applied
	}
	for _, k := range []string{lastAppliedStatus, lastAppliedMeta} {
		if v, ok := annotations[k].(string); ok {
			applied[k] = v
		}
		delete(annotations, k)
		if _, there := server.Annotations[k]; there {
			annotations[k] = nil // left by another virtual-kubelet
		}
	}
	if len(annotations) == 0 {
		delete(meta, "annotations")
	}
	if len(meta) == 0 {
		delete(patch, "metadata")
	}
	return applied
}
