package logs

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/host"
)

// pack compresses a file, as a rotation does to an older one: the result is a new file. A reader
// that has the old one open can still read it, unless byName.
func (d *disk) pack(p string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[p]
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(f.data)
	_ = z.Close()
	d.files[p+".gz"] = &file{d: d, inode: d.inode(), data: b.Bytes()}
	delete(d.files, p)
	if d.byName {
		d.free = append(d.free, f.inode)
	}
}

// runtime writes numbered lines as containerd does: to the file that it has open, whatever its
// name, and for a moment after the new file exists.
type runtime struct {
	d     *disk
	open  *file
	lines int
	stamp int
}

func (r *runtime) write(n int) {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	for range n {
		r.open.data = append(r.open.data, logLine(r.lines, "stdout", "F", fmt.Sprint("n ", r.lines))...)
		r.lines++
	}
}

func (r *runtime) reopen(late int, pause time.Duration) {
	r.d.write("/log", "")
	time.Sleep(pause)
	r.write(late)
	r.d.mu.Lock()
	r.open = r.d.files["/log"]
	r.d.mu.Unlock()
}

// slow is a reader that pauses now and then, as if behind a bad link.
type slow struct {
	mu     sync.Mutex
	out    bytes.Buffer
	pauses []time.Duration
}

func (s *slow) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pauses) > 0 {
		time.Sleep(s.pauses[0])
		s.pauses = s.pauses[1:]
	}
	return s.out.Write(b)
}

// step is what the runtime and a rotation do between two waits.
type step struct {
	Rotate    bool
	Lines     int
	Late      int
	Wait      time.Duration
	Renamed   time.Duration // how long there is no log at the path
	LatePause time.Duration
	Pack      bool
	Stall     time.Duration // how long the follower's next question for the container's state takes
}

// follow follows a log through steps, with a follower that pauses before its first writes. It
// returns what the follower wrote and the number of lines that the runtime wrote.
func follow(t *testing.T, byName bool, pauses []time.Duration, before int, steps []step) (got string, wrote int) {
	d := newDisk()
	d.byName = byName
	for i := range before { // rotated before the follower started
		d.write(fmt.Sprintf("/log.%04d", i), logLine(0, "stdout", "F", "old"))
	}
	r := &runtime{d: d, stamp: before}
	r.reopenFirst()
	w := &slow{pauses: pauses}
	var mu sync.Mutex
	running := true
	var stall time.Duration
	done := make(chan error, 1)
	go func() {
		done <- Read(t.Context(), d, "/log", &v1.PodLogOptions{Follow: true}, func(context.Context) (bool, error) {
			mu.Lock()
			pause := stall
			stall = 0
			mu.Unlock()
			time.Sleep(pause)
			mu.Lock()
			defer mu.Unlock()
			return running, nil
		}, w, w)
	}()
	synctest.Wait() // the follower has started
	for _, s := range steps {
		mu.Lock()
		stall = s.Stall
		mu.Unlock()
		r.write(s.Lines)
		time.Sleep(s.Wait)
		if s.Rotate {
			if byName {
				time.Sleep(3 * time.Second) // rotations are never closer than this
				r.write(1)                  // an empty log is not rotated
			}
			if s.Pack {
				for _, p := range d.unpacked() {
					d.pack(p)
				}
			}
			d.rename("/log", fmt.Sprintf("/log.%04d", r.stamp))
			r.stamp++
			r.write(s.Late)
			time.Sleep(s.Renamed)
			r.reopen(s.Late, s.LatePause)
		}
	}
	mu.Lock()
	running = false
	mu.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return w.out.String(), r.lines
}

// missed returns what is wrong with the output of a follower of wrote lines, or nothing.
func missed(got string, wrote int) string {
	lines := strings.SplitAfter(got, "\n")
	for i, l := range lines[:len(lines)-1] {
		if l != fmt.Sprintf("n %d\n", i) {
			return fmt.Sprintf("line %d is %q", i, l)
		}
	}
	if len(lines)-1 != wrote {
		return fmt.Sprintf("%d lines of %d", len(lines)-1, wrote)
	}
	return ""
}

// Whatever the order of writes, rotations, compressions and polls, and however late a follower is,
// it sees each line once and in order.
func TestFollowedOverAnyRotations(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		byName := rapid.Bool().Draw(rt, "byName")
		pauses := rapid.SliceOfN(rapid.SampledFrom([]time.Duration{0, 0, 0, 200 * time.Millisecond, time.Second, 25 * time.Second, 100 * time.Second}), 0, 30).Draw(rt, "pauses")
		steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
			waits := rapid.SampledFrom([]time.Duration{0, time.Millisecond, 150 * time.Millisecond, time.Second, 7 * time.Second})
			return step{rapid.Bool().Draw(t, "rotate"), rapid.SampledFrom([]int{0, 0, 1, 2, 50, 400}).Draw(t, "lines"), rapid.IntRange(0, 3).Draw(t, "late"),
				waits.Draw(t, "wait"), waits.Draw(t, "renamed"), rapid.SampledFrom([]time.Duration{0, 100 * time.Millisecond}).Draw(t, "latePause"), rapid.Bool().Draw(t, "pack"),
				rapid.SampledFrom([]time.Duration{0, 0, 0, 10 * time.Second, time.Minute}).Draw(t, "stall")}
		}), 1, 25).Draw(rt, "steps")
		before := rapid.IntRange(0, 2).Draw(rt, "before")

		var got string
		var wrote int
		synctest.Test(t, func(t *testing.T) { got, wrote = follow(t, byName, pauses, before, steps) })
		if wrong := missed(got, wrote); wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// These sequences once made a follower lose lines. On a host that reads by inode, the log got the
// inode of the file that the follower had open.
func TestFollowedAlthoughTheLogGetsTheInodeOfTheOpenFile(t *testing.T) {
	for name, c := range map[string]struct {
		pauses []time.Duration
		steps  []step
	}{
		// The second rotation happens while the follower waits for late lines of the first file.
		"while it waits": {[]time.Duration{time.Second, time.Second}, []step{
			{Rotate: true, Late: 1},
			{Rotate: true, Pack: true},
		}},
		// The follower opened an empty log, and gets no answer until two rotations have happened.
		"while it gets no answer": {nil, []step{
			{Rotate: true, Stall: 10 * time.Second},
			{Rotate: true, Pack: true},
		}},
		// Three rotations happen while the follower writes the last line of the first file, after it
		// has opened the second one, which was empty.
		"while it writes": {[]time.Duration{25 * time.Second}, []step{
			{Rotate: true, Stall: 10 * time.Second},
			{Rotate: true, Wait: 7 * time.Second},
			{Rotate: true, Pack: true},
			{Rotate: true},
		}},
		// The open file was compressed before anything was read of it.
		"while there is no log": {nil, []step{
			{Rotate: true, Stall: 10 * time.Second},
			{Rotate: true, Pack: true, Renamed: 7 * time.Second},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if wrong := missed(follow(t, true, c.pauses, 1, c.steps)); wrong != "" {
					t.Error(wrong)
				}
			})
		})
	}
}

func (r *runtime) reopenFirst() {
	r.d.write("/log", "")
	r.open = r.d.files["/log"]
}

func (d *disk) unpacked() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []string
	for p := range d.files {
		if strings.HasPrefix(path.Base(p), "log.") && !strings.HasSuffix(p, ".gz") {
			list = append(list, p)
		}
	}
	slices.Sort(list)
	return list
}

// A file that was removed before a late follower reached it is lost, and nothing else is.
func TestFollowedOverRemovedLogs(t *testing.T) {
	for _, byName := range []bool{false, true} {
		t.Run(fmt.Sprint("byName ", byName), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDisk()
				d.byName = byName
				d.write("/log", logLine(0, "stdout", "F", "a"))
				// When the follower has read a, b to e come and b to d are removed.
				var once sync.Once
				d.onStat = func() {
					once.Do(func() {
						for i, l := range []string{"b", "c", "d", "e"} {
							p := fmt.Sprint("/log.", i)
							time.Sleep(3 * time.Second) // rotations are never closer than this
							d.rename("/log", p)
							if i > 0 {
								d.pack(fmt.Sprint("/log.", i-1))
							}
							d.write("/log", logLine(i+1, "stdout", "F", l))
						}
						d.mu.Lock()
						for _, p := range []string{"/log.0.gz", "/log.1.gz", "/log.2.gz"} {
							delete(d.files, p)
						}
						d.mu.Unlock()
					})
				}
				got := followed(t, d, v1.PodLogOptions{}, func(stop func(error)) {
					time.Sleep(20 * time.Second)
					stop(nil)
				})
				if got != "a\nd\ne\n" {
					t.Errorf("%q", got)
				}
			})
		})
	}
}

// A host that does not answer ends no follower of an empty log: it continues when the host is back.
func TestFollowedEmptyLogOfAHostThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		d.write("/log", "")
		away := func(err error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.err = err
		}
		questions := 0
		running := func(context.Context) (bool, error) {
			switch questions++; questions {
			case 1:
				away(host.ErrUnreachable)
				time.Sleep(5 * time.Second)
			case 4:
				away(nil)
				d.write("/log", logLine(0, "stdout", "F", "a"))
			}
			return questions < 10, nil
		}
		var out bytes.Buffer
		err := Read(t.Context(), d, "/log", &v1.PodLogOptions{Follow: true}, running, &out, &out)
		if err != nil || out.String() != "a\n" {
			t.Errorf("%q, %v", out.String(), err)
		}
	})
}

// During a rotation there is no log for a moment; a reader that starts then gets no error.
func TestReadWhileRotated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		go func() {
			time.Sleep(openPause + openPause/2)
			d.write("/log", logLine(0, "stdout", "F", "a"))
		}()
		var out bytes.Buffer
		if err := Read(t.Context(), d, "/log", &v1.PodLogOptions{}, nil, &out, &out); err != nil || out.String() != "a\n" {
			t.Errorf("%q, %v", out.String(), err)
		}
	})
}

// found returns the file that a read of f reads.
func (f *file) found() *file {
	if !f.d.byName {
		return f
	}
	for _, other := range f.d.files {
		if other.inode == f.inode {
			return other
		}
	}
	return nil
}
