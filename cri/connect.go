package cri

import (
	"context"
	"errors"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/hint"
)

// ErrNoCRI means that something answers on the socket, but not with CRI v1.
var ErrNoCRI = errors.New("no CRI v1")

// Connect returns a client after it has asked the runtime for its version. A wrong socket or an old
// runtime thus fails immediately, with one sentence. If the connection is lost later, the next
// calls reconnect.
func Connect(ctx context.Context, c Config) (*Client, error) {
	if c.Dial == nil {
		return nil, errors.New("cri: Config.Dial is required")
	}
	client, err := newClient(c)
	if err != nil {
		return nil, fmt.Errorf("prepare the CRI client for %s: %w", c.endpoint(), err)
	}
	version, err := client.Version(ctx)
	if err == nil {
		if version.GetRuntimeName() == "" {
			err = fmt.Errorf("%s answers CRI v1 without naming its runtime: %w", c.endpoint(), ErrNoCRI)
		} else {
			return client, nil
		}
	} else {
		err = client.explain(ctx, err)
	}
	_ = client.Close()
	return nil, err
}

func (c Config) endpoint() string {
	if c.Endpoint == "" {
		return "the CRI socket"
	}
	return c.Endpoint
}

// explain describes why the first call failed, and what to do.
func (c *Client) explain(ctx context.Context, err error) error {
	where := c.config.endpoint()
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	switch {
	case e.Kind == KindUnimplemented && c.servesV1alpha2(ctx):
		return hint.Add(fmt.Errorf("the runtime at %s serves only CRI v1alpha2: %w", where, ErrNoCRI), "upgrade it (containerd 1.6 or later)")
	case e.Kind == KindUnimplemented:
		return hint.Add(fmt.Errorf("the runtime at %s does not serve CRI v1: %w", where, ErrNoCRI),
			"for containerd, remove \"cri\" from disabled_plugins in /etc/containerd/config.toml, and restart it")
	case e.Kind == KindTransport:
		if dial := c.lastDialError(); dial != nil {
			return hint.Add(fmt.Errorf("%s does not answer: %w", where, dial), "check that the container runtime runs, and that this user may open its socket")
		}
		return fmt.Errorf("%s accepts connections but does not answer as a container runtime: %w", where, err)
	}
	return fmt.Errorf("%s refused to report its version: %w", where, err)
}

// servesV1alpha2 calls Version of CRI v1's predecessor, whose messages have the same wire format.
func (c *Client) servesV1alpha2(ctx context.Context) bool {
	var reply runtimeapi.VersionResponse
	err := c.conn.Invoke(ctx, "/runtime.v1alpha2.RuntimeService/Version", &runtimeapi.VersionRequest{}, &reply)
	return err == nil
}
