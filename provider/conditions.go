package provider

import (
	"context"
	"encoding/json"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// PatchConditions writes conditions to the Node of a host that this process does not manage: no Node
// of this package runs, which would report its own. It leaves the other conditions as they are.
func PatchConditions(ctx context.Context, client kubernetes.Interface, nodeName string, now metav1.Time, conditions []Condition) error {
	var list []v1.NodeCondition
	for _, c := range conditions {
		list = append(list, v1.NodeCondition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message, LastHeartbeatTime: now, LastTransitionTime: now})
	}
	data, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": list}})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Nodes().Patch(ctx, nodeName, types.StrategicMergePatchType, data, metav1.PatchOptions{}, "status")
	return err
}
