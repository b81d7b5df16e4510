// Package imagegc removes images that nobody uses when the file system that holds them
// fills up: the kubelet's imageManager garbage collection. Nobody is anybody who has a
// container on the runtime, other drivers included, and a pod of ours that names the
// image, whether it has a container yet or not.
package imagegc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/syncloop/imagegc/choose"
	"github.com/bowline-k8s/bowline/wall"
)

// Runtime is what the collector asks of the container runtime; *cri.Client has it.
type Runtime interface {
	ListImages(ctx context.Context) ([]*runtimeapi.Image, error)
	ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
	RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error
	ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error)
}

// Config of a Collector.
type Config struct {
	Runtime Runtime
	Host    host.Meters
	// Event records an event on the node.
	Event func(kind, reason, message string)
	// Wanted says whether a pod of ours names the image, or the runtime itself does.
	Wanted func(*runtimeapi.Image) bool
	// Present is told which images there were at a time, by ID; nil: nobody asks.
	Present func(ctx context.Context, ids []string, asOf time.Time)
	// Quiet says that nothing is known of the pods now, or that the machine is another's:
	// nothing is removed.
	Quiet func() bool
	// High and Low are percents of the file system: from the one on images are removed,
	// until the other is reached. With a High of 100 none are, but for their age.
	High, Low int
	// MinAge that an image has at least when it is removed; MaxAge without use from which
	// it is removed in any case, 0: never.
	MinAge, MaxAge time.Duration
}

const (
	// Period is how often the file system is looked at.
	Period = 5 * time.Minute
	// quietPeriod is how often Config.Quiet is asked while it says so.
	quietPeriod = 10 * time.Second
	// mostPause is the longest pause after a collection that freed too little: a disk that
	// others have filled is not mended by removing what pods are about to need again.
	mostPause = time.Hour
)

// Collector removes images.
type Collector struct {
	cfg Config

	mu      sync.Mutex // one collection at a time
	records choose.Records
	began   time.Time
	pause   time.Duration // the present one after a failure; 0: the last one sufficed
	until   time.Time
}

// New makes a Collector; Run drives it.
func New(c Config) (*Collector, error) {
	switch {
	case c.Runtime == nil, c.Host == nil, c.Event == nil, c.Wanted == nil, c.Quiet == nil:
		return nil, errors.New("imagegc: Runtime, Host, Event, Wanted and Quiet are required")
	case c.Low < 0 || c.Low > c.High || c.High > 100:
		return nil, fmt.Errorf("imagegc: Low %d and High %d are not percents in order", c.Low, c.High)
	}
	return &Collector{cfg: c}, nil
}

// Run collects until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	failures := 0
	for {
		// As soon as the pods are known, and not a period later.
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
			log.V(1).Info("Images are not looked at, as the machine is out of reach", "err", err)
		default:
			// The kubelet's first failure may be of a runtime that is about to come.
			if failures++; failures > 1 {
				c.cfg.Event(v1.EventTypeWarning, "ImageGCFailed", err.Error())
			}
			log.Error(err, "The garbage collection of images failed")
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

// look brings the records up to date.
func (c *Collector) look(ctx context.Context, now time.Time) error {
	// Images first: one that is pulled, and a container made of it, between the two lists
	// is used, or is not there at all.
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
	c.records = choose.Look(c.records, now, images, containers, c.cfg.Wanted)
	return nil
}

// Collect removes what is too old, and where the file system is too full what is not
// used until it is not any more.
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
		if _, err := c.remove(ctx, choose.Old(c.records, now, c.cfg.MaxAge), math.MaxInt64, "nobody has used it for long"); err != nil {
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
	excess := choose.Excess(fs.Bytes, fs.FreeBytes, c.cfg.High, c.cfg.Low)
	switch {
	case excess == 0:
		c.pause, c.until = 0, time.Time{}
		return nil
	case !wall.Passed(c.until, now):
		return nil
	}
	klog.FromContext(ctx).Info("The disk of images is too full", "percent", choose.Percent(fs.Bytes, fs.FreeBytes), "high", c.cfg.High, "low", c.cfg.Low, "excess", excess)
	freed, err := c.remove(ctx, choose.Settled(c.records, now, c.cfg.MinAge), excess, "the disk is too full")
	if err != nil {
		return err
	}
	if freed >= excess {
		c.pause, c.until = 0, time.Time{}
		return nil
	}
	c.pause = min(max(2*c.pause, 2*Period), mostPause)
	c.until = now.Add(c.pause)
	c.cfg.Event(v1.EventTypeWarning, "FreeDiskSpaceFailed", fmt.Sprintf(
		"Insufficient free disk space on the node's image filesystem (%d%% of %s used). "+
			"Failed to free sufficient space by deleting unused images (freed %d bytes). "+
			"Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
		choose.Percent(fs.Bytes, fs.FreeBytes), size(fs.Bytes), freed))
	return nil
}

// RemoveUnused removes every image that nobody uses, under disk pressure, but for the
// ones that have just come.
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
	_, err := c.remove(ctx, choose.Settled(c.records, now, c.cfg.MinAge), math.MaxInt64, "the node is short of disk")
	return err
}

// remove removes images in order until so many bytes are freed.
func (c *Collector) remove(ctx context.Context, ids []string, bytes int64, why string) (freed int64, err error) {
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
		klog.FromContext(ctx).Info("Image removed", "image", id, "bytes", c.records[id].Size, "why", why)
		freed += c.records[id].Size
		delete(c.records, id)
	}
	return freed, errors.Join(errs...)
}

// fileSystem is that which holds the images.
func (c *Collector) fileSystem(ctx context.Context) (host.FileSystem, error) {
	info, err := c.cfg.Runtime.ImageFsInfo(ctx)
	if err != nil {
		return host.FileSystem{}, fmt.Errorf("ask the runtime where images are: %w", err)
	}
	at := ""
	for _, fs := range info.GetImageFilesystems() {
		if at == "" {
			at = fs.GetFsId().GetMountpoint()
		}
	}
	if at == "" {
		return host.FileSystem{}, errors.New("the runtime does not say where images are")
	}
	m, err := c.cfg.Host.Measure(ctx, "", at)
	if err != nil {
		return host.FileSystem{}, err
	}
	return m.FileSystems[0], nil
}

// size writes bytes with a unit.
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
