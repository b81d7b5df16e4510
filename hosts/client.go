package hosts

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
)

// API is what a Source needs of the API server for Hosts. *Client implements it.
type API interface {
	List(ctx context.Context, opts metav1.ListOptions) (*v1alpha1.HostList, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
	Get(ctx context.Context, name string) (*v1alpha1.Host, error)
	// SetFinalizers replaces h's finalizers. It returns a conflict if h is not the newest version.
	SetFinalizers(ctx context.Context, h *v1alpha1.Host, finalizers []string) error
	// RecordMachine writes the machine into h's status, and returns the updated Host. It returns a
	// conflict if h is not the newest version.
	RecordMachine(ctx context.Context, h *v1alpha1.Host, machine v1alpha1.MachineStatus) (*v1alpha1.Host, error)
	// ApplyStatus makes status everything that this process says of h, except for the machine.
	ApplyStatus(ctx context.Context, h *v1alpha1.Host, status *v1alpha1.HostStatus) error
}

const (
	resource = "hosts"
	// manager owns the fields of the status (server-side apply).
	manager = "bowline"
	// answer is the timeout of one request.
	answer = 20 * time.Second
)

// Client is a typed client of Host objects.
type Client struct {
	rest  rest.Interface
	codec runtime.ParameterCodec
}

// NewClient makes a Client.
func NewClient(config *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	c := rest.CopyConfig(config)
	c.APIPath, c.GroupVersion = "/apis", &v1alpha1.GroupVersion
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("client of Host objects: %w", err)
	}
	return &Client{rest: client, codec: runtime.NewParameterCodec(scheme)}, nil
}

// List implements API.
func (c *Client) List(ctx context.Context, opts metav1.ListOptions) (*v1alpha1.HostList, error) {
	list := &v1alpha1.HostList{}
	err := c.rest.Get().Resource(resource).VersionedParams(&opts, c.codec).Do(ctx).Into(list)
	return list, err
}

// Watch implements API.
func (c *Client) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	opts.Watch = true
	return c.rest.Get().Resource(resource).VersionedParams(&opts, c.codec).Watch(ctx)
}

// SetFinalizers implements API.
func (c *Client) SetFinalizers(ctx context.Context, h *v1alpha1.Host, finalizers []string) error {
	if finalizers == nil {
		finalizers = []string{}
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": h.ResourceVersion, "finalizers": finalizers}})
	if err != nil {
		return err
	}
	return c.rest.Patch(types.MergePatchType).Resource(resource).Name(h.Name).Timeout(answer).Body(body).Do(ctx).Error()
}

// RecordMachine implements API. It is a merge patch and not part of ApplyStatus, so that a status
// computed earlier cannot restore a record that was removed meanwhile.
func (c *Client) RecordMachine(ctx context.Context, h *v1alpha1.Host, machine v1alpha1.MachineStatus) (*v1alpha1.Host, error) {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": h.ResourceVersion}, "status": map[string]any{"machine": machine},
	})
	if err != nil {
		return nil, err
	}
	now := &v1alpha1.Host{}
	err = c.rest.Patch(types.MergePatchType).Resource(resource).Name(h.Name).SubResource("status").Timeout(answer).Body(body).Do(ctx).Into(now)
	return now, err
}

// ApplyStatus implements API.
func (c *Client) ApplyStatus(ctx context.Context, h *v1alpha1.Host, status *v1alpha1.HostStatus) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "Host",
		// The UID is a precondition: a new Host may have the same name.
		"metadata": map[string]any{"name": h.Name, "uid": h.UID}, "status": status,
	})
	if err != nil {
		return err
	}
	return c.rest.Patch(types.ApplyPatchType).Resource(resource).Name(h.Name).SubResource("status").
		Param("fieldManager", manager).Param("force", "true").Timeout(answer).Body(body).Do(ctx).Error()
}
