package hostadmin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/pod"
)

// Why asks the pod's node why the pod runs or does not run. It asks through the API server's proxy,
// because the node's endpoint is authenticated and may be out of the caller's reach.
func Why(ctx context.Context, client kubernetes.Interface, namespace, name string) (*pod.WhyReport, error) {
	p, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", namespace, name, err)
	}
	if p.Spec.NodeName == "" {
		return nil, hint.Add(fmt.Errorf("pod %s/%s has no node yet", namespace, name), "read the scheduler's reason: kubectl -n %s describe pod %s", namespace, name)
	}
	answer := client.CoreV1().RESTClient().Get().Resource("nodes").Name(p.Spec.NodeName).SubResource("proxy").
		Suffix("bowline/v1/why", namespace, name).Do(ctx)
	if err := whyNot(answer); err != nil {
		return nil, fmt.Errorf("node %s: %w", p.Spec.NodeName, err)
	}
	data, err := answer.Raw()
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", p.Spec.NodeName, err)
	}
	report := &pod.WhyReport{}
	if err := json.Unmarshal(data, report); err != nil {
		return nil, hint.Add(fmt.Errorf("the answer of node %s is not a report: %w", p.Spec.NodeName, err), "check that it is a Bowline node: kubectl get node %s --show-labels", p.Spec.NodeName)
	}
	return report, nil
}

// whyNot returns the error of an answer. An answer that the API server's client cannot decode, such as
// plain text, is the node's own message.
func whyNot(answer rest.Result) error {
	err := answer.Error()
	if body, _ := answer.Raw(); len(body) == 0 { // not decodable; the error is err
		if cause, ok := apierrors.StatusCause(err, metav1.CauseTypeUnexpectedServerResponse); ok && cause.Message != "" {
			return errors.New(cause.Message)
		}
	}
	if apierrors.IsNotFound(err) {
		return hint.Add(errors.New("the node does not serve this report"), "check that it is a Bowline node: kubectl get nodes --show-labels")
	}
	return err
}
