package main

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
	"github.com/bowline-k8s/bowline/pod"
	podconfig "github.com/bowline-k8s/bowline/syncloop/config"
	"github.com/bowline-k8s/bowline/syncloop/mirror"
)

// staticPods are the sources of static pods, and what shows them in the API server.
type staticPods struct {
	file    *podconfig.File // nil: the configuration names none
	http    *podconfig.HTTP // the same
	mirrors *mirror.Manager
	changed nudge                           // a manifest, where the machine is not far
	watch   func(ctx context.Context) error // pokes changed; nil: nobody does
	apiSeen chan struct{}                   // closed when the API server has shown its pods
	node    atomic.Pointer[types.UID]       // of the node's object; nil: not known, or it goes
}

// staticPatience is how long static pods wait for the API server after our start: it has
// their last statuses, and the services of their environment. They run without it.
const staticPatience = 5 * time.Second

// sourceNames are the sources of pods that have to be seen before a pod is an orphan.
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

func (n *node) buildStatic() (err error) {
	s, cfg := &n.static, n.cfg
	s.apiSeen = make(chan struct{})
	if cfg.StaticPodPath != "" {
		if n.host.link == nil {
			s.changed = make(nudge, 1)
			s.watch = func(ctx context.Context) error { return local.Watch(ctx, cfg.StaticPodPath, s.changed.poke) }
		}
		s.file = podconfig.NewFile(n.sources, podconfig.FileConfig{
			Files: n.host, Path: cfg.StaticPodPath, NodeName: n.name, Period: cfg.FileCheckFrequency.Duration,
			Changed: s.changed, Event: n.warnOnNode,
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
		Pods: n.cluster.client.CoreV1(), Sources: n.sources, NodeName: n.name, Ending: n.loop.Ending, Lives: n.loop.Lives,
		Silent: func() bool { return n.node.Silent() }, Event: n.warnOnNode,
		Node: func() types.UID {
			if uid := s.node.Load(); uid != nil {
				return *uid
			}
			return ""
		},
	})
	return err
}

// see takes in a version of the node's object.
func (s *staticPods) see(node *v1.Node) {
	if node.DeletionTimestamp != nil {
		s.node.Store(nil)
		return
	}
	s.node.Store(&node.UID)
}

// start runs the parts that the configuration asks for. Mirror pods are always kept: those
// of static pods that the configuration named once have to go.
func (s *staticPods) start(part func(string, func(context.Context) error)) {
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
		klog.FromContext(ctx).Info("The API server has not shown its pods yet; static pods start without")
	}
}

// warnOnNode records an event about what concerns no one pod.
func (n *node) warnOnNode(reason, message string) {
	n.recorder.Event(&v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.name, UID: types.UID(n.name)}, v1.EventTypeWarning, reason, message)
}

// shownConfig is the configuration without what whoever may read it should not learn.
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
