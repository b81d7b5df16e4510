package node

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop"
	"github.com/bowline-k8s/bowline/syncloop/mirror"
	"github.com/bowline-k8s/bowline/syncloop/podconfig"
)

// staticPods are the sources of static pods, and the manager of their mirror pods.
type staticPods struct {
	file    *podconfig.File // nil if not configured
	http    *podconfig.HTTP // nil if not configured
	mirrors *mirror.Manager
	changed notify.Signal                   // a manifest changed; local hosts only
	watch   func(ctx context.Context) error // sends changed; nil for a remote host
	apiSeen chan struct{}                   // closed when the API server has listed its pods
	node    atomic.Pointer[types.UID]       // UID of the Node object; nil while unknown or being deleted
}

// staticPatience is how long static pods wait for the API server after startup, because it has
// their last statuses and the services for their environment. After that they start without it.
const staticPatience = 5 * time.Second

// sourceNames returns the sources that must have delivered their pods before a pod counts as an
// orphan.
func sourceNames(cfg *config.Host) []string {
	names := []string{podconfig.SourceAPI}
	if cfg.StaticPodPath != "" {
		names = append(names, podconfig.SourceFile)
	}
	if cfg.StaticPodURL != "" {
		names = append(names, podconfig.SourceHTTP)
	}
	return names
}

func (n *Node) buildStatic(context.Context) (err error) {
	s, cfg := &n.static, n.cfg
	s.apiSeen = make(chan struct{})
	if cfg.StaticPodPath != "" {
		if n.host.Link == nil {
			s.changed = notify.New()
			s.watch = func(ctx context.Context) error { return local.Watch(ctx, cfg.StaticPodPath, s.changed.Send) }
		}
		s.file = podconfig.NewFile(n.sources, podconfig.FileConfig{
			Files: n.host, Path: cfg.StaticPodPath, NodeName: n.name, Period: cfg.FileCheckFrequency.Duration,
			Changed: s.changed, Event: n.warnOnNode,
			PodEvent: func(p *v1.Pod, reason, message string) {
				syncloop.Event(n.recorder, p, "", v1.EventTypeWarning, reason, message)
			},
		})
	}
	if cfg.StaticPodURL != "" {
		header := http.Header{}
		for name, values := range cfg.StaticPodURLHeader {
			for _, v := range values {
				header.Add(name, v)
			}
		}
		s.http = podconfig.NewHTTP(n.sources, podconfig.HTTPConfig{
			URL: cfg.StaticPodURL, Header: header, Client: &http.Client{}, NodeName: n.name,
			Period: cfg.HTTPCheckFrequency.Duration, Event: n.warnOnNode,
		})
	}
	s.mirrors, err = mirror.New(mirror.Config{
		Pods: n.cluster.Client.CoreV1(), Sources: n.sources, NodeName: n.name, Ending: n.loop.StaticPodEnding, Alive: func(uid types.UID) bool { return n.loop.State(uid).Alive() },
		Silent: func() bool { return n.node.Standby() }, Event: n.warnOnNode,
		Node: func() types.UID {
			if uid := s.node.Load(); uid != nil {
				return *uid
			}
			return ""
		},
	})
	return err
}

// see handles a new version of the Node object.
func (s *staticPods) see(node *v1.Node) {
	if node.DeletionTimestamp != nil {
		s.node.Store(nil)
		return
	}
	s.node.Store(&node.UID)
}

// start runs the configured parts. The mirror pod manager always runs: it deletes mirror pods of
// static pods that were configured once.
func (s *staticPods) start(part start) {
	part("mirror pods", s.mirrors.Run)
	if s.file != nil {
		part("static pods from files", func(ctx context.Context) error { s.await(ctx); return s.file.Run(ctx) })
	}
	if s.watch != nil {
		part("watch of static pods", s.watch)
	}
	if s.http != nil {
		part("static pods from a URL", func(ctx context.Context) error { s.await(ctx); return s.http.Run(ctx) })
	}
}

func (s *staticPods) await(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-s.apiSeen:
	case <-time.After(staticPatience):
		klog.FromContext(ctx).Info("Starting static pods: the API server has not listed its pods yet")
	}
}

// warnOnNode records an event that concerns no single pod.
func (n *Node) warnOnNode(reason, message string) {
	n.recorder.Event(pod.NodeReference(n.name), v1.EventTypeWarning, reason, message)
}

// shownConfig returns the configuration for /configz, without the credentials in it.
func shownConfig(cfg *config.Host) *config.Host {
	shown := *cfg
	shown.StaticPodURL = pod.ShownURL(cfg.StaticPodURL)
	if cfg.StaticPodURLHeader == nil {
		return &shown
	}
	shown.StaticPodURLHeader = map[string][]string{}
	for name := range cfg.StaticPodURLHeader {
		shown.StaticPodURLHeader[name] = []string{"(not shown)"}
	}
	return &shown
}
