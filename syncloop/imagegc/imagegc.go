// Package imagegc removes unused images when the file system that holds them fills up: the
// kubelet's image garbage collection (imageManager). An image is in use if any container in the
// runtime uses it, whether or not Bowline created that container, or if a pod of ours names it,
// with or without a container yet.
package imagegc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/syncloop/imagegc/imagegcpolicy"
	"github.com/bowline-k8s/bowline/wall"
)

// Runtime is the part of *cri.Client that the collector needs.
type Runtime interface {
	ListImages(ctx context.Context) ([]*runtimeapi.Image, error)
	ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
	RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error
	ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error)
}

// Config configures a Collector.
type Config struct {
	Runtime Runtime
	Host    host.Meters
	// Event records an event on the node.
	Event func(kind, reason, message string)
	// Wanted reports whether a pod of ours, or the runtime itself, names the image.
	Wanted func(*runtimeapi.Image) bool
	// Present receives the IDs of all images at a time; nil: no one needs them.
	Present func(ctx context.Context, ids []string, asOf time.Time)
	// Removed is called for each image that was removed; nil: no one needs it.
	Removed func(Reason)
	// Quiet reports that the pods are not known now, or that the host belongs to another process.
	// Nothing is removed then.
	Quiet func() bool
	// High and Low are percentages of the file system's size. From High on, images are removed
	// until Low is reached. With a High of 100, images are removed only for their age.
	High, Low int
	// MinAge is the least age of an image that is removed. MaxAge is how long an image may stay
	// unused, even if there is room; 0 means forever.
	MinAge, MaxAge time.Duration
}

// Reason is why an image is removed, in the kubelet's words.
type Reason string

const (
	ForAge   Reason = "age"
	ForSpace Reason = "space"
)

const (
	// Period is how often the file system is checked.
	Period = 5 * time.Minute
	// quietPeriod is how often Config.Quiet is called while it returns true.
	quietPeriod = 10 * time.Second
)

// pauses are those after collections that freed too little. If other files have filled the disk, it
// does not help to remove images that pods are about to need again.
var pauses = wait.Backoff{Duration: 2 * Period, Factor: 2, Steps: 10, Cap: time.Hour}

// Collector removes images.
type Collector struct {
	cfg Config

	mu      sync.Mutex // one collection at a time
	records imagegcpolicy.Records
	began   time.Time
	pauses  wait.Backoff // the next ones
	until   time.Time
}

// New returns a Collector; Run starts its work.
func New(c Config) (*Collector, error) {
	switch {
	case c.Runtime == nil, c.Host == nil, c.Event == nil, c.Wanted == nil, c.Quiet == nil:
		return nil, errors.New("imagegc: Runtime, Host, Event, Wanted and Quiet are required")
	case c.Low < 0 || c.Low > c.High || c.High > 100:
		return nil, fmt.Errorf("imagegc: Low %d and High %d are not percents in order", c.Low, c.High)
	}
	if c.Removed == nil {
		c.Removed = func(Reason) {}
	}
	return &Collector{cfg: c, pauses: pauses}, nil
}

// Run collects until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	failures := 0
	for {
		// Collect as soon as the sources have delivered the pods, not a whole Period later.
		for c.cfg.Quiet() {
			if !sleep(ctx, quietPeriod) {
				return nil
			}
		}
		err := c.Collect(ctx)
		switch log := klog.FromContext(ctx); {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			failures = 0
		case errors.Is(err, host.ErrUnreachable):
			log.V(1).Info("Skipped image garbage collection: the host is unreachable", "err", err)
		default:
			// The first failure may come from a runtime that is still starting; the kubelet records
			// no event for it either.
			if failures++; failures > 1 {
				c.cfg.Event(v1.EventTypeWarning, "ImageGCFailed", err.Error())
			}
			log.Error(err, "Failed to collect unused images")
		}
		if !sleep(ctx, Period) {
			return nil
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// look updates the records.
func (c *Collector) look(ctx context.Context, now time.Time) error {
	// List images first: if one is pulled and used by a container between the two lists, it is
	// missing or in use, never unused.
	images, err := c.cfg.Runtime.ListImages(ctx)
	if err != nil {
		return err
	}
	containers, err := c.cfg.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return err
	}
	if c.cfg.Present != nil {
		ids := make([]string, 0, len(images))
		for _, i := range images {
			ids = append(ids, i.GetId())
		}
		c.cfg.Present(ctx, ids, now)
	}
	c.records = imagegcpolicy.Look(c.records, now, images, containers, c.cfg.Wanted)
	return nil
}

// Collect removes images that are too old. If the file system is too full, it also removes unused
// images until enough is freed.
func (c *Collector) Collect(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cfg.Quiet() {
		return nil
	}
	now := time.Now()
	if c.began.IsZero() {
		c.began = now.Round(0)
	}
	if err := c.look(ctx, now); err != nil {
		return err
	}
	if c.cfg.MaxAge > 0 && now.Sub(c.began) > c.cfg.MaxAge {
		if _, err := c.remove(ctx, imagegcpolicy.Old(c.records, now, c.cfg.MaxAge), math.MaxInt64, ForAge, "it has been unused for too long"); err != nil {
			return err
		}
	}
	if c.cfg.High == 100 {
		return nil
	}
	fs, err := c.fileSystem(ctx)
	if err != nil {
		return err
	}
	if fs.Bytes == 0 {
		err := errors.New("invalid capacity 0 on image filesystem")
		c.cfg.Event(v1.EventTypeWarning, "InvalidDiskCapacity", err.Error())
		return err
	}
	excess := imagegcpolicy.Excess(fs.Bytes, fs.FreeBytes, c.cfg.High, c.cfg.Low)
	switch {
	case excess == 0:
		c.pauses, c.until = pauses, time.Time{}
		return nil
	case !wall.Passed(c.until, now):
		return nil
	}
	klog.FromContext(ctx).Info("Found the image file system above the high threshold", "percent", imagegcpolicy.Percent(fs.Bytes, fs.FreeBytes), "high", c.cfg.High, "low", c.cfg.Low, "excess", excess)
	freed, err := c.remove(ctx, imagegcpolicy.Settled(c.records, now, c.cfg.MinAge), excess, ForSpace, "the disk is too full")
	if err != nil {
		return err
	}
	if freed >= excess {
		c.pauses, c.until = pauses, time.Time{}
		return nil
	}
	c.until = now.Add(c.pauses.Step())
	c.cfg.Event(v1.EventTypeWarning, "FreeDiskSpaceFailed", fmt.Sprintf(
		"Insufficient free disk space on the node's image filesystem (%d%% of %s used). "+
			"Failed to free sufficient space by deleting unused images (freed %d bytes). "+
			"Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
		imagegcpolicy.Percent(fs.Bytes, fs.FreeBytes), size(fs.Bytes), freed))
	return nil
}

// RemoveUnused removes every unused image, under disk pressure, except those younger than MinAge.
func (c *Collector) RemoveUnused(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cfg.Quiet() {
		return nil
	}
	now := time.Now()
	if err := c.look(ctx, now); err != nil {
		return err
	}
	_, err := c.remove(ctx, imagegcpolicy.Settled(c.records, now, c.cfg.MinAge), math.MaxInt64, ForSpace, "the node is short of disk")
	return err
}

// remove removes images in order until that many bytes are freed.
func (c *Collector) remove(ctx context.Context, ids []string, bytes int64, reason Reason, why string) (freed int64, err error) {
	var errs []error
	for _, id := range ids {
		if freed >= bytes {
			break
		}
		if err := c.cfg.Runtime.RemoveImage(ctx, &runtimeapi.ImageSpec{Image: id}); err != nil {
			errs = append(errs, fmt.Errorf("remove image %s: %w", id, err))
			if ctx.Err() != nil || errors.Is(err, host.ErrUnreachable) {
				break
			}
			continue
		}
		klog.FromContext(ctx).Info("Removed the image", "image", id, "bytes", c.records[id].Size, "why", why)
		c.cfg.Removed(reason)
		freed += c.records[id].Size
		delete(c.records, id)
	}
	return freed, errors.Join(errs...)
}

// fileSystem is the file system that holds the images.
func (c *Collector) fileSystem(ctx context.Context) (host.FileSystem, error) {
	info, err := c.cfg.Runtime.ImageFsInfo(ctx)
	if err != nil {
		return host.FileSystem{}, fmt.Errorf("read the runtime's image file system: %w", err)
	}
	at := ""
	for _, fs := range info.GetImageFilesystems() {
		if at == "" {
			at = fs.GetFsId().GetMountpoint()
		}
	}
	if at == "" {
		return host.FileSystem{}, errors.New("the runtime does not report its image file system")
	}
	m, err := c.cfg.Host.Measure(ctx, "", at)
	if err != nil {
		return host.FileSystem{}, err
	}
	return m.FileSystems[0], nil
}

// size formats bytes with a unit.
func size(bytes int64) string {
	if bytes < 1<<10 {
		return fmt.Sprintf("%d B", bytes)
	}
	n, unit := float64(bytes)/(1<<10), 0
	for n >= 1<<10 && unit < 3 {
		n, unit = n/(1<<10), unit+1
	}
	return fmt.Sprintf("%.1f %ciB", n, "KMGT"[unit])
}
