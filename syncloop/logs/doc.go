// Package logs keeps containers' logs on the machine within bounds, as the kubelet's
// container log manager does: a log that has reached MaxSize is renamed to
// LOG.YYYYMMDD-HHMMSS and the runtime told to open a new one; older ones are
// compressed (.gz) and, beyond MaxFiles, removed.
//
//	0.log                        the runtime writes here
//	0.log.20260102-030405        rotated last; a collector may still be reading it
//	0.log.20260102-030305.gz     older ones
//	0.log.20260102-030205.tmp    a compression under way, or one that was cut off
//
// The sizes of all logs are one request to the machine; only a log that is too large
// costs more. What was cut off at any point is put right by a later look: a log that is
// not there is opened by the runtime, and the rest by the next rotation.
//
// It differs from the kubelet's where that loses something: a log that cannot be
// compressed is rotated all the same, and the renamed log gets its name back only if
// nothing has it, as the runtime may have opened the new one and its answer got lost.
package logs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bowline-k8s/bowline/host"
)

// Host is what is needed of the machine; host.Host is one.
type Host interface {
	StatAll(ctx context.Context, paths []string) ([]host.FileInfo, error)
	List(ctx context.Context, dir string) ([]host.FileInfo, error)
	Rename(ctx context.Context, from, to string) error
	Compress(ctx context.Context, path string) error
	Remove(ctx context.Context, path string) error
}

// Runtime opens logs.
type Runtime interface {
	ReopenContainerLog(ctx context.Context, id string) error
}

// Container is a running container of ours.
type Container struct {
	ID      string
	LogPath string // on the machine, absolute
}

// Config of a Rotator.
type Config struct {
	Host    Host
	Runtime Runtime
	// Containers are those that run now, as far as is known.
	Containers func() []Container
	// IsTransport tells an error of the runtime after which nothing is known.
	IsTransport func(error) bool
	// LogsRoot is "/var/log/pods"; a log elsewhere is not touched.
	LogsRoot string
	// MaxSize in bytes at which a log is rotated; negative: none is.
	MaxSize int64
	// MaxFiles of one container, with the one that is written to; at least 2.
	MaxFiles int
	// MaxWorkers is how many logs are rotated at a time.
	MaxWorkers int
	// Interval between two looks.
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
