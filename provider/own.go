package provider

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// AnnotationDriver marks the node objects that Bowline reports; AnnotationInstance
// says which process's drive of the machine was the last to begin.
const (
	AnnotationDriver   = "bowline.io/driver"
	AnnotationInstance = "bowline.io/instance"
	driverName         = "bowline"
)

// CheckOwn refuses a node object that another agent reports: to take it would tear a
// working machine out of the cluster. One that nobody has reported yet, made by hand
// or by a tool before its machine came, is taken.
func CheckOwn(n *v1.Node) error {
	if n.Annotations[AnnotationDriver] == driverName || n.Status.NodeInfo.KubeletVersion == "" {
		return nil
	}
	return fmt.Errorf("the cluster has a node %q already that is not Bowline's (kubelet %s, %s, made %s): choose another nodeName; "+
		"or, if that machine is gone, kubectl delete node %s; or, if Bowline is to take its place, kubectl annotate node %s %s=%s",
		n.Name, n.Status.NodeInfo.KubeletVersion, n.Status.NodeInfo.OSImage, n.CreationTimestamp.Format("2006-01-02"), n.Name, n.Name, AnnotationDriver, driverName)
}
