package podconfig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/podconfig/manifest"
)

// HTTPConfig configures the http source.
type HTTPConfig struct {
	// URL of a manifest, and the header of each request.
	URL    string
	Header http.Header
	// Client sends the requests; each has its own deadline (askTimeout).
	Client   *http.Client
	NodeName string
	// Period is the time between two requests.
	Period time.Duration
	// Event reports on the node that a manifest cannot be fetched or used.
	Event func(reason, message string)
}

// HTTP is the http source: static pods from a URL that serves a Pod or a PodList. This process
// sends the requests, not the host.
type HTTP struct {
	cfg    HTTPConfig
	config *PodConfig
	name   string // the URL without its secret parts, for messages
	last   []byte // the content that was last used
	faults faultLog
}

// askTimeout bounds one request.
const askTimeout = 10 * time.Second

// NewHTTP makes the http source. Run sends the requests.
func NewHTTP(c *PodConfig, cfg HTTPConfig) *HTTP {
	return &HTTP{cfg: cfg, config: c, name: pod.ShownURL(cfg.URL), faults: newFaultLog(cfg.Event)}
}

// Run requests the URL until ctx ends. If the URL cannot be read, the pods stay as they are. A
// successful but empty response means that there are no pods.
func (h *HTTP) Run(ctx context.Context) error {
	tick := time.NewTicker(h.cfg.Period)
	defer tick.Stop()
	for {
		h.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (h *HTTP) look(ctx context.Context) {
	data, err := h.get(ctx)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		h.faults.fault(ctx, h.name, "StaticPodsUnreadable", fmt.Sprintf("Failed to read static pods from %s; they stay unchanged: %v", h.name, err))
	case len(data) == 0:
		h.last = nil
		h.config.Replace(SourceHTTP, nil)
		h.faults.well(ctx, h.name)
	case !bytes.Equal(data, h.last):
		h.use(ctx, data)
	default:
		h.faults.well(ctx, h.name)
	}
}

func (h *HTTP) use(ctx context.Context, data []byte) {
	pods, warnings, err := manifest.Decode(data, manifest.Origin{Source: pod.SourceHTTP, Path: h.cfg.URL, NodeName: h.cfg.NodeName})
	if err == nil {
		err = twice(pods)
	}
	if err != nil {
		h.faults.fault(ctx, h.name, "InvalidStaticPod", fmt.Sprintf("Static pod manifest %s is invalid, static pods stay unchanged: %v", h.name, err))
		return
	}
	now := time.Now().UTC().Format(time.RFC3339Nano)
	for _, p := range pods {
		p.Annotations[pod.AnnotationSeen] = now
	}
	h.last = data
	h.config.Replace(SourceHTTP, pods)
	if len(warnings) > 0 {
		h.faults.fault(ctx, h.name, "StaticPodWarning", fmt.Sprintf("Static pod manifest %s: %s", h.name, strings.Join(warnings, "; ")))
	} else {
		h.faults.well(ctx, h.name)
	}
}

func twice(pods []*v1.Pod) error {
	seen := map[fullName]bool{}
	for _, p := range pods {
		if seen[nameOf(p)] {
			return fmt.Errorf("it has pod %s/%s twice", p.Namespace, p.Name)
		}
		seen[nameOf(p)] = true
	}
	return nil
}

func (h *HTTP) get(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, h.cfg.URL, nil)
	if err != nil {
		return nil, err
	}
	if h.cfg.Header != nil {
		request.Header = h.cfg.Header.Clone()
	}
	if name := request.Header.Get("Host"); name != "" {
		request.Host = name // net/http ignores a Host header
	}
	reply, err := h.cfg.Client.Do(request)
	if err != nil {
		// A url.Error's text contains the whole URL, also that of a redirect.
		var full *url.Error
		if errors.As(err, &full) {
			err = full.Err
		}
		return nil, err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return nil, errors.New(reply.Status)
	}
	data, err := io.ReadAll(io.LimitReader(reply.Body, manifest.MaxBytes+1))
	if err == nil && len(data) > manifest.MaxBytes {
		err = fmt.Errorf("it has more than %d bytes", manifest.MaxBytes)
	}
	return data, err
}
