package provider

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/hint"
)

// AnnotationDriver marks Bowline's node objects. AnnotationInstance is the Config.Instance that
// began last.
const (
	AnnotationDriver   = "bowline.io/driver"
	AnnotationInstance = "bowline.io/instance"
	driverName         = "bowline"
)

// CheckOwn refuses a node object that another agent reports, because taking it over would remove a
// working machine from the cluster. It accepts one that was never reported, for example created by
// hand or by a tool before its machine started.
func CheckOwn(n *v1.Node) error {
	if n.Annotations[AnnotationDriver] == driverName || n.Status.NodeInfo.KubeletVersion == "" {
		return nil
	}
	return hint.Add(fmt.Errorf("the cluster already has a node %q that does not belong to Bowline (kubelet %s, %s, created %s)",
		n.Name, n.Status.NodeInfo.KubeletVersion, n.Status.NodeInfo.OSImage, n.CreationTimestamp.Format("2006-01-02")),
		"choose another nodeName; or, if its host no longer exists, run kubectl delete node %s; or, if Bowline replaces it, run kubectl annotate node %s %s=%s",
		n.Name, n.Name, AnnotationDriver, driverName)
}
