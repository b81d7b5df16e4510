package hosts

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
)

// Calls for the command line; a Source needs only Get.

// Get implements API.
func (c *Client) Get(ctx context.Context, name string) (*v1alpha1.Host, error) {
	h := &v1alpha1.Host{}
	err := c.rest.Get().Resource(resource).Name(name).Timeout(answer).Do(ctx).Into(h)
	return h, err
}

// Create creates a Host, and returns it as the API server stored it.
func (c *Client) Create(ctx context.Context, h *v1alpha1.Host) (*v1alpha1.Host, error) {
	made := &v1alpha1.Host{}
	err := c.rest.Post().Resource(resource).Timeout(answer).Body(h).Do(ctx).Into(made)
	return made, err
}

// Patch changes a Host by a merge patch.
func (c *Client) Patch(ctx context.Context, name string, body []byte) error {
	return c.rest.Patch(types.MergePatchType).Resource(resource).Name(name).Timeout(answer).Body(body).Do(ctx).Error()
}

// Delete deletes a Host; its finalizer keeps it until its node is gone.
func (c *Client) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	return c.rest.Delete().Resource(resource).Name(name).Timeout(answer).Body(&opts).Do(ctx).Error()
}
