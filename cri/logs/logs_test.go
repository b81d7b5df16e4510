package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// disk is a host with files in memory.
type disk struct {
	mu    sync.Mutex
	files map[string]*file
	next  uint64
	free  []uint64 // inodes that may be reused
	err   error    // returned by Stat, if not nil
	// onStat runs before each Stat.
	onStat func()
	// byName: a read looks up its file by inode, which is reused once no file has it.
	byName bool
}

type file struct {
	d     *disk
	inode uint64
	data  []byte
}

func newDisk() *disk { return &disk{files: map[string]*file{}} }

// write appends to a path, and creates the file if it does not exist.
func (d *disk) write(path, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[path]
	if f == nil {
		f = &file{d: d, inode: d.inode()}
		d.files[path] = f
	}
	f.data = append(f.data, text...)
}

func (d *disk) inode() uint64 {
	if len(d.free) > 0 {
		n := d.free[0]
		d.free = d.free[1:]
		return n
	}
	d.next++
	return d.next
}

func (d *disk) rename(from, to string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[to] = d.files[from]
	delete(d.files, from)
}

func (d *disk) truncate(path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[path].data = nil
}

func (d *disk) Open(_ context.Context, path string) (host.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[path]
	if f == nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return f, nil
}

func (d *disk) Stat(_ context.Context, path string) (host.FileInfo, error) {
	if d.onStat != nil {
		d.onStat()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return host.FileInfo{}, d.err
	}
	f := d.files[path]
	if f == nil {
		return host.FileInfo{}, &fs.PathError{Op: "stat", Path: path, Err: fs.ErrNotExist}
	}
	return host.FileInfo{Inode: f.inode, Size: int64(len(f.data))}, nil
}

func (d *disk) List(_ context.Context, dir string) ([]host.FileInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return nil, d.err
	}
	var infos []host.FileInfo
	for p, f := range d.files {
		if path.Dir(p) == dir {
			infos = append(infos, host.FileInfo{Name: path.Base(p), Inode: f.inode, Size: int64(len(f.data))})
		}
	}
	return infos, nil
}

func (f *file) ReadAt(b []byte, off int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f = f.found(); f == nil {
		return 0, &fs.PathError{Op: "read", Path: "log", Err: fs.ErrNotExist}
	}
	if off >= int64(len(f.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) Stat() (host.FileInfo, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return host.FileInfo{Inode: f.inode, Size: int64(len(f.data))}, nil
}

func (*file) Close() error { return nil }

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)

// logLine is a line in the CRI format, stamped i seconds after t0.
func logLine(i int, stream, tag, text string) string {
	return fmt.Sprintf("%s %s %s %s\n", t0.Add(time.Duration(i)*time.Second).Format(time.RFC3339Nano), stream, tag, text)
}

func read(t *testing.T, content string, opts v1.PodLogOptions) (stdout, stderr string) {
	t.Helper()
	d := newDisk()
	d.write("/log", content)
	var out, errs bytes.Buffer
	testutil.Must(t, Read(t.Context(), d, "/log", &opts, nil, &out, &errs))
	return out.String(), errs.String()
}

func ptr[T any](v T) *T { return &v }

const sample = `2026-01-02T03:04:05.0000006Z stdout F one
2026-01-02T03:04:06.0000006Z stderr F two
garbage
2026-01-02T03:04:07.0000006Z stdout P thr
2026-01-02T03:04:07.0000006Z stderr F between
2026-01-02T03:04:08.0000006Z stdout F:later-tag ee
2026-01-02T03:04:09.0000006+00:00 stdout F 
`

func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		opts     v1.PodLogOptions
		out, err string
	}{
		"all":              {v1.PodLogOptions{}, "one\nthree\n\n", "two\nbetween\n"},
		"tail":             {v1.PodLogOptions{TailLines: ptr(int64(2))}, "ee\n\n", ""},
		"tail none":        {v1.PodLogOptions{TailLines: ptr(int64(0))}, "", ""},
		"tail more":        {v1.PodLogOptions{TailLines: ptr(int64(99))}, "one\nthree\n\n", "two\nbetween\n"},
		"since":            {v1.PodLogOptions{SinceTime: ptr(metav1.NewTime(t0.Add(3 * time.Second)))}, "ee\n\n", ""},
		"limit":            {v1.PodLogOptions{LimitBytes: ptr(int64(6))}, "one\n", "tw"},
		"limit none":       {v1.PodLogOptions{LimitBytes: ptr(int64(0))}, "", ""},
		"only stdout":      {v1.PodLogOptions{Stream: ptr(v1.LogStreamStdout)}, "one\nthree\n\n", ""},
		"only stderr":      {v1.PodLogOptions{Stream: ptr(v1.LogStreamStderr)}, "", "two\nbetween\n"},
		"limit one stream": {v1.PodLogOptions{Stream: ptr(v1.LogStreamStderr), LimitBytes: ptr(int64(5))}, "", "two\nb"},
		// Combined options apply together.
		"tail, since": {v1.PodLogOptions{TailLines: ptr(int64(3)), SinceTime: ptr(metav1.NewTime(t0.Add(4 * time.Second)))}, "\n", ""},
		"tail, limit": {v1.PodLogOptions{TailLines: ptr(int64(3)), LimitBytes: ptr(int64(8))}, "", "between\n"},
		"tail, stamps": {v1.PodLogOptions{TailLines: ptr(int64(2)), Timestamps: true},
			"2026-01-02T03:04:08.000000600Z ee\n2026-01-02T03:04:09.000000600Z \n", ""},
		"since, limit, one stream": {v1.PodLogOptions{SinceTime: ptr(metav1.NewTime(t0.Add(time.Second))), LimitBytes: ptr(int64(3)), Stream: ptr(v1.LogStreamStdout)}, "thr", ""},
		"stamps, limit":            {v1.PodLogOptions{Timestamps: true, LimitBytes: ptr(int64(33))}, "2026-01-02T03:04:05.000000600Z on", ""},
		"all streams":              {v1.PodLogOptions{Stream: ptr(v1.LogStreamAll), LimitBytes: ptr(int64(9))}, "one\nt", "two\n"},
		"stamps": {v1.PodLogOptions{Timestamps: true, Stream: ptr(v1.LogStreamStdout)},
			"2026-01-02T03:04:05.000000600Z one\n2026-01-02T03:04:07.000000600Z three\n2026-01-02T03:04:09.000000600Z \n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			out, errs := read(t, sample, c.opts)
			// The +00:00 zone is kept as written, or shown as Z: both are UTC.
			out = strings.ReplaceAll(out, "+00:00", "Z")
			if out != c.out || errs != c.err {
				t.Errorf("stdout %q, stderr %q\nwant   %q,        %q", out, errs, c.out, c.err)
			}
		})
	}
}

func TestUnfinishedLine(t *testing.T) {
	out, _ := read(t, logLine(0, "stdout", "F", "a")+strings.TrimSuffix(logLine(1, "stdout", "F", "b"), "\n"), v1.PodLogOptions{})
	if out != "a\nb" {
		t.Errorf("%q", out)
	}
}

func TestLineTooLong(t *testing.T) {
	out, _ := read(t, strings.Repeat("x", 3*longestLine)+"\n"+logLine(1, "stdout", "F", "b"), v1.PodLogOptions{})
	if out != "b\n" {
		t.Errorf("%q", out)
	}
}

func TestAbsent(t *testing.T) {
	err := Read(t.Context(), newDisk(), "/log", &v1.PodLogOptions{}, nil, io.Discard, io.Discard)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
}

// Tail by ranges agrees with splitting the whole file.
func TestTailAgainstDumb(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		for range rapid.IntRange(0, 40).Draw(t, "lines") {
			b.WriteString(strings.Repeat("x", rapid.SampledFrom([]int{0, 1, 7, tailBlock - 1, tailBlock, tailBlock + 1}).Draw(t, "len")))
			b.WriteByte('\n')
		}
		if rapid.Bool().Draw(t, "unfinished") {
			b.WriteString("tail")
		}
		n := rapid.IntRange(0, 45).Draw(t, "n")
		s := b.String()
		got, err := tailStart(t.Context(), strings.NewReader(s), int64(len(s)), int64(n))
		testutil.Must(t, err)
		lines := strings.SplitAfter(s, "\n") // the last one is the unfinished line
		keep := lines[max(0, len(lines)-1-n):]
		if want := int64(len(s) - len(strings.Join(keep, ""))); got != want {
			t.Fatalf("start %d, want %d of %d", got, want, len(s))
		}
	})
}

// followed runs Read with Follow in a synctest bubble, while step changes the world.
func followed(t *testing.T, d *disk, opts v1.PodLogOptions, step func(stop func(error))) string {
	t.Helper()
	opts.Follow = true
	var mu sync.Mutex
	var endErr error
	running := true
	var out bytes.Buffer
	done := make(chan error, 1)
	go func() {
		done <- Read(t.Context(), d, "/log", &opts, func(context.Context) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			return running, endErr
		}, &out, &out)
	}()
	step(func(err error) { mu.Lock(); defer mu.Unlock(); running, endErr = false, err })
	if err := <-done; err != nil {
		t.Error(err)
	}
	return out.String()
}

func TestFollow(t *testing.T) {
	for name, c := range map[string]struct {
		opts v1.PodLogOptions
		step func(d *disk, stop func(error))
		want string
	}{
		"grows": {v1.PodLogOptions{}, func(d *disk, stop func(error)) {
			time.Sleep(3 * time.Second)
			d.write("/log", logLine(1, "stdout", "F", "b")[:20])
			time.Sleep(3 * time.Second)
			d.write("/log", logLine(1, "stdout", "F", "b")[20:])
			stop(nil)
		}, "a\nb\n"},
		"tail": {v1.PodLogOptions{TailLines: ptr(int64(0))}, func(d *disk, stop func(error)) {
			time.Sleep(3 * time.Second)
			d.write("/log", logLine(1, "stdout", "F", "b"))
			d.write("/log", logLine(2, "stdout", "F", "c"))
			stop(nil)
		}, "b\nc\n"},
		"limit": {v1.PodLogOptions{LimitBytes: ptr(int64(3))}, func(d *disk, stop func(error)) {
			time.Sleep(time.Second)
			d.write("/log", logLine(1, "stdout", "F", "bcd"))
		}, "a\nb"},
		// The runtime writes to the renamed file until it reopens.
		"rotation": {v1.PodLogOptions{}, func(d *disk, stop func(error)) {
			time.Sleep(10 * time.Second)
			d.rename("/log", "/log.1")
			d.write("/log.1", logLine(1, "stdout", "F", "b"))
			time.Sleep(10 * time.Second)
			d.write("/log.1", logLine(2, "stdout", "F", "c"))
			d.write("/log", logLine(3, "stdout", "F", "d"))
			time.Sleep(10 * time.Second)
			d.write("/log", logLine(4, "stdout", "F", "e"))
			stop(nil)
		}, "a\nb\nc\nd\ne\n"},
		"rotation at the end": {v1.PodLogOptions{}, func(d *disk, stop func(error)) {
			time.Sleep(10*time.Second + 50*time.Millisecond)
			d.write("/log", logLine(1, "stdout", "F", "b"))
			d.rename("/log", "/log.1")
			d.write("/log", logLine(3, "stdout", "F", "d"))
			stop(nil)
		}, "a\nb\nd\n"},
		"cut in place": {v1.PodLogOptions{}, func(d *disk, stop func(error)) {
			time.Sleep(10 * time.Second)
			d.truncate("/log")
			time.Sleep(10 * time.Second)
			d.write("/log", logLine(1, "stdout", "F", "b"))
			stop(nil)
		}, "a\nb\n"},
		"runtime away": {v1.PodLogOptions{}, func(d *disk, stop func(error)) {
			stop(&cri.Error{Kind: cri.KindTransport, Err: status.Error(codes.Unavailable, "away")})
			time.Sleep(time.Minute)
			d.write("/log", logLine(1, "stdout", "F", "b"))
			time.Sleep(time.Minute)
			stop(nil)
		}, "a\nb\n"},
		"container removed": {v1.PodLogOptions{}, func(d *disk, stop func(error)) {
			stop(&cri.Error{Kind: cri.KindNotFound, Err: status.Error(codes.NotFound, "gone")})
		}, "a\n"},
		"machine away": {v1.PodLogOptions{}, func(d *disk, stop func(error)) {
			d.mu.Lock()
			d.err = host.ErrUnreachable
			d.mu.Unlock()
			time.Sleep(time.Minute)
			d.write("/log", logLine(1, "stdout", "F", "b"))
			stop(nil)
		}, "a\nb\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDisk()
				d.write("/log", logLine(0, "stdout", "F", "a"))
				if got := followed(t, d, c.opts, func(stop func(error)) { c.step(d, stop) }); got != c.want {
					t.Errorf("%q, want %q", got, c.want)
				}
			})
		})
	}
}

// Lines that the runtime writes to the old file, between our last read of it and the runtime's
// switch to the new one, are not lost.
func TestRotationBetweenReadAndStat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		d.write("/log", logLine(0, "stdout", "F", "a"))
		var once sync.Once
		d.onStat = func() {
			once.Do(func() {
				d.write("/log", logLine(1, "stdout", "F", "b"))
				d.rename("/log", "/log.1")
				d.write("/log", logLine(2, "stdout", "F", "c"))
			})
		}
		got := followed(t, d, v1.PodLogOptions{}, func(stop func(error)) {
			time.Sleep(5 * time.Second)
			stop(nil)
		})
		if got != "a\nb\nc\n" {
			t.Errorf("%q", got)
		}
	})
}

// Following a quiet log must cost almost nothing.
func TestFollowAsksSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		d.write("/log", "")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		asked := 0
		err := Read(ctx, d, "/log", &v1.PodLogOptions{Follow: true}, func(context.Context) (bool, error) {
			asked++
			return true, nil
		}, io.Discard, io.Discard)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want the context's", err)
		}
		if asked < 30 || asked > 61 {
			t.Errorf("asked for the container %d times in a minute, want once a second", asked)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, l := range strings.SplitAfter(sample, "\n") {
		f.Add([]byte(l))
	}
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := Parse(b)
		if err != nil {
			return
		}
		tag := "F"
		if l.Partial {
			tag = "P"
		}
		again, err := Parse(fmt.Appendf(nil, "%s %s %s %s\n", l.Time.Format(time.RFC3339Nano), l.Stream, tag, l.Content))
		if err != nil {
			t.Fatalf("%q: parsed, but not what it says: %v", b, err)
		}
		if !again.Time.Equal(l.Time) || again.Stream != l.Stream || again.Partial != l.Partial || !bytes.Equal(again.Content, l.Content) {
			t.Fatalf("%q: %+v is not %+v", b, again, l)
		}
	})
}

// Whatever a file contains, reading it does not fail and does not write more than it contains.
func FuzzRead(f *testing.F) {
	f.Add(sample, int64(3))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, content string, tail int64) {
		if tail < 0 {
			return
		}
		out, errs := read(t, content, v1.PodLogOptions{TailLines: &tail})
		if len(out)+len(errs) > len(content) {
			t.Fatalf("%d bytes out of %d", len(out)+len(errs), len(content))
		}
	})
}
