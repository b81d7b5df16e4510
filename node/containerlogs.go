package node

import (
	"context"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/logs"
)

// buildLogs creates the log rotator of the node's containers.
func (n *Node) buildLogs(context.Context) error {
	size, err := n.cfg.LogMaxSize()
	if err != nil {
		return err
	}
	n.parts.logs, err = logs.New(logs.Config{
		Host: n.host, Runtime: n.runtime, Containers: n.runningContainers, IsTransport: cri.IsTransport, LogsRoot: n.seen.load().spec.PodLogsDir,
		MaxSize: size, MaxFiles: int(*n.cfg.ContainerLogMaxFiles), MaxWorkers: int(*n.cfg.ContainerLogMaxWorkers),
		Interval: n.cfg.ContainerLogMonitorInterval.Duration,
	})
	return err
}

// runningContainers returns the running containers of the node's pods, from the PLEG cache.
func (n *Node) runningContainers() []logs.Container {
	var list []logs.Container
	cache := n.pleg.Cache()
	for _, ref := range cache.Known() {
		for _, c := range cache.Get(ref.UID).Containers {
			if c.State == pod.StateRunning && c.LogPath != "" {
				list = append(list, logs.Container{ID: c.ID, LogPath: c.LogPath})
			}
		}
	}
	return list
}
