package imagegc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// disk is a fake host with a disk of 1000 bytes, some of them used by other files.
type disk struct {
	host.Meters
	mu         sync.Mutex
	images     []*runtimeapi.Image
	containers []*runtimeapi.Container
	others     int64
	removed    []string
	err        error
	wanted     map[string]bool
	quiet      bool
	events     []string
	present    []string
	reasons    []Reason
}

// do changes or reads the disk under its lock.
func (d *disk) do(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

func (d *disk) ListImages(context.Context) ([]*runtimeapi.Image, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.images, d.err
}
func (d *disk) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.containers, nil
}
func (d *disk) RemoveImage(_ context.Context, i *runtimeapi.ImageSpec) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.removed = append(d.removed, i.Image)
	d.images = slices.DeleteFunc(slices.Clone(d.images), func(m *runtimeapi.Image) bool { return m.Id == i.Image })
	return nil
}
func (d *disk) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/images"}}}}, nil
}
func (d *disk) Measure(_ context.Context, _ string, paths ...string) (host.Measured, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	free := 1000 - d.others
	for _, i := range d.images {
		free -= int64(i.Size)
	}
	if !slices.Equal(paths, []string{"/images"}) {
		return host.Measured{}, fmt.Errorf("measured are %v", paths)
	}
	return host.Measured{FileSystems: []host.FileSystem{{Bytes: 1000, FreeBytes: free}}}, nil
}

func (d *disk) said() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.events)
}

func (d *disk) gone() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.removed)
}

func (d *disk) add(id string, size uint64) {
	d.images = append(d.images, &runtimeapi.Image{Id: id, RepoTags: []string{"registry/" + id + ":1"}, Size: size})
}

// runs adds a container that uses the image.
func (d *disk) runs(id string) {
	d.containers = append(d.containers, &runtimeapi.Container{Id: "c-" + id, ImageId: id, ImageRef: id})
}

func (d *disk) collector(t *testing.T, maxAge time.Duration) *Collector {
	t.Helper()
	c, err := New(Config{Runtime: d, Host: d, High: 85, Low: 80, MinAge: 2 * time.Minute, MaxAge: maxAge,
		Wanted:  func(i *runtimeapi.Image) bool { return d.wanted[i.Id] },
		Quiet:   func() bool { return d.quiet },
		Removed: func(r Reason) { d.do(func() { d.reasons = append(d.reasons, r) }) },
		Present: func(_ context.Context, ids []string, asOf time.Time) {
			d.do(func() { d.present = append(d.present, fmt.Sprint(ids, time.Since(asOf))) })
		},
		Event: func(kind, reason, message string) {
			d.do(func() { d.events = append(d.events, kind+" "+reason+" "+message) })
		}})
	testutil.Must(t, err)
	return c
}

// Between the thresholds nothing is removed. Above them images are removed by last use, except
// those that are used, pinned, wanted or just pulled.
func TestCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{wanted: map[string]bool{"wanted": true}}
		for _, id := range []string{"used", "wanted", "pinned", "once", "never"} {
			d.add(id, 100)
		}
		d.images[2].Pinned = true
		d.runs("used")
		d.runs("once")
		c := d.collector(t, 0)
		collect := func(want ...string) {
			t.Helper()
			d.removed = nil
			if err := c.Collect(t.Context()); err != nil {
				t.Error(err)
			}
			if !slices.Equal(d.removed, want) {
				t.Errorf("removed %v, want %v", d.removed, want)
			}
			time.Sleep(Period)
		}
		collect()
		d.containers = d.containers[:1] // "once" was used by then
		d.others = 340                  // 84 % in total
		collect()
		d.others = 350
		d.quiet = true
		collect()
		d.quiet = false
		collect("never") // at 85 %, which 100 bytes bring to 75 %
		d.others = 450
		d.add("new", 10)
		collect("once")
		d.others = 560 // only "new" is left, and it has come of age
		collect("new")
		if len(d.events) != 1 || !strings.HasPrefix(d.events[0], "Warning FreeDiskSpaceFailed Insufficient free disk space on the node's image filesystem (87% of 1000 B used). Failed to free sufficient space by deleting unused images (freed 10 bytes).") {
			t.Errorf("the events are %q", d.events)
		}
		if !slices.Equal(d.reasons, []Reason{ForSpace, ForSpace, ForSpace}) {
			t.Errorf("removed for %q", d.reasons)
		}
	})
}

// Other files have filled the disk: the event recurs ever more rarely, and images pulled meanwhile
// stay until the next attempt. Once there is room again, the pause starts from the beginning.
func TestFilledByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{others: 900}
		c := d.collector(t, 0)
		stop := testutil.Go(t.Context(), c.Run)
		time.Sleep(6 * time.Hour)
		synctest.Wait()
		if n := len(d.said()); n < 5 || n > 10 {
			t.Errorf("%d events in 6 hours: %q", n, d.said())
		}
		d.do(func() { d.add("idle", 10) })
		time.Sleep(30*time.Minute + time.Second)
		synctest.Wait()
		d.do(func() { d.others = 0 })
		time.Sleep(time.Hour)
		synctest.Wait()
		d.do(func() { d.others = 900 })
		time.Sleep(2 * Period)
		synctest.Wait()
		if !slices.Equal(d.gone(), []string{"idle"}) {
			t.Errorf("removed %v after a new beginning", d.removed)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// An image unused for imageMaximumGCAge is removed, however much room there is.
func TestAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		d.add("idle", 1)
		d.add("used", 1)
		d.runs("used")
		c := d.collector(t, time.Hour)
		for range 12 {
			if err := c.Collect(t.Context()); err != nil {
				t.Error(err)
			}
			time.Sleep(Period)
		}
		if len(d.removed) != 0 {
			t.Errorf("removed %v within the hour", d.removed)
		}
		time.Sleep(time.Minute)
		_ = c.Collect(t.Context())
		if !slices.Equal(d.removed, []string{"idle"}) || !slices.Equal(d.reasons, []Reason{ForAge}) {
			t.Errorf("removed %v for %v", d.removed, d.reasons)
		}
	})
}

// Under disk pressure every unused image is removed. An unreachable host and a single failure of
// the runtime cause no event.
func TestRemoveUnusedAndFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		d.add("a", 1)
		d.add("b", 1)
		d.runs("b")
		c := d.collector(t, 0)
		_ = c.Collect(t.Context())
		time.Sleep(3 * time.Minute)
		if err := c.RemoveUnused(t.Context()); err != nil || !slices.Equal(d.removed, []string{"a"}) {
			t.Errorf("removed %v, %v", d.removed, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		d.do(func() { d.err = fmt.Errorf("list: %w", host.ErrUnreachable) })
		go c.Run(ctx)
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		if len(d.said()) != 0 {
			t.Errorf("events of a machine out of reach: %q", d.said())
		}
		d.do(func() { d.err = errors.New("no") })
		time.Sleep(Period)
		synctest.Wait()
		if len(d.said()) != 0 {
			t.Errorf("an event of the first failure: %q", d.said())
		}
		time.Sleep(Period)
		synctest.Wait()
		if !slices.Equal(d.said(), []string{"Warning ImageGCFailed no"}) {
			t.Errorf("the events are %q", d.said())
		}
		cancel()
	})
}

// Present is called at each look with the images that exist.
func TestPresent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		d.add("a", 1)
		c := d.collector(t, 0)
		testutil.Must(t, c.Collect(t.Context()))
		d.add("b", 1)
		testutil.Must(t, c.RemoveUnused(t.Context()))
		d.quiet = true
		testutil.Must(t, c.Collect(t.Context()))
		d.quiet, d.err = false, errors.New("no list")
		if err := c.Collect(t.Context()); err == nil {
			t.Error("it collected without a list")
		}
		if got := strings.Join(d.present, "; "); got != "[a] 0s; [a b] 0s" {
			t.Errorf("it got %s", got)
		}
	})
}

// The first collection is not a whole Period late if the pods were not known at once.
func TestFirstLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{others: 900}
		c := d.collector(t, 0)
		var quiet atomic.Bool
		quiet.Store(true)
		c.cfg.Quiet = quiet.Load
		stop := testutil.Go(t.Context(), c.Run)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(d.said()) != 0 {
			t.Errorf("while the pods are not known it says %q", d.said())
		}
		quiet.Store(false)
		time.Sleep(quietPeriod)
		synctest.Wait()
		if got := d.said(); len(got) != 1 || !strings.Contains(got[0], "FreeDiskSpaceFailed") {
			t.Errorf("once they are known it says %q", got)
		}
		quiet.Store(true)
		time.Sleep(2 * Period)
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
