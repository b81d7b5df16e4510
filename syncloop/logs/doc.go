// Package logs keeps container logs on the host within limits, as the kubelet's container log
// manager does. It renames a log that has reached MaxSize to LOG.YYYYMMDD-HHMMSS and asks the
// runtime to reopen it. It compresses older rotated logs (.gz) and removes those beyond MaxFiles.
//
//	0.log                        the runtime writes here
//	0.log.20260102-030405        rotated last; a collector may still be reading it
//	0.log.20260102-030305.gz     older ones
//	0.log.20260102-030205.tmp    a compression in progress, or an interrupted one
//
// One request to the host returns the sizes of all logs; only a log that is too large costs more. A
// later sweep repairs a rotation that was interrupted at any point: if the log is missing, the
// sweep asks the runtime to reopen it; the next rotation cleans up the rest.
//
// It differs from the kubelet where the kubelet would lose something. It rotates a log even if an
// old one cannot be compressed. It gives the renamed log its name back only if no file has that
// name: the runtime may have opened the new log although its answer was lost.
package logs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bowline-k8s/bowline/host"
)

// Host is the part of host.Host that a Rotator needs.
type Host interface {
	FileSizes(ctx context.Context, paths []string) ([]int64, error)
	List(ctx context.Context, dir string) ([]host.FileInfo, error)
	Rename(ctx context.Context, from, to string) error
	Compress(ctx context.Context, path string) error
	Remove(ctx context.Context, path string) error
}

// Runtime opens logs.
type Runtime interface {
	ReopenContainerLog(ctx context.Context, id string) error
}

// Container is one of our running containers.
type Container struct {
	ID      string
	LogPath string // absolute path on the host
}

// Config of a Rotator.
type Config struct {
	Host    Host
	Runtime Runtime
	// Containers returns the containers that run now, as far as we know.
	Containers func() []Container
	// IsTransport reports whether it is unknown, after a runtime error, if the call took effect.
	IsTransport func(error) bool
	// LogsRoot is "/var/log/pods"; logs elsewhere are not touched.
	LogsRoot string
	// MaxSize is the size in bytes at which a log is rotated; negative disables rotation.
	MaxSize int64
	// MaxFiles is the limit per container, including the current log; at least 2.
	MaxFiles int
	// MaxWorkers is how many logs may rotate at the same time.
	MaxWorkers int
	// Interval is the time between two sweeps.
	Interval time.Duration
}

func (c *Config) validate() error {
	switch {
	case c.Host == nil, c.Runtime == nil, c.Containers == nil, c.IsTransport == nil, c.LogsRoot == "":
		return errors.New("logs: Host, Runtime, Containers, IsTransport and LogsRoot are required")
	case c.MaxFiles < 2:
		return fmt.Errorf("logs: MaxFiles is %d, and must be 2 at least", c.MaxFiles)
	case c.MaxWorkers < 1, c.Interval <= 0:
		return errors.New("logs: MaxWorkers and Interval must be positive")
	}
	return nil
}
