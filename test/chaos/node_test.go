package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/test/labtest"
	"github.com/bowline-k8s/bowline/test/oracle"
)

// node is one lab host and the Bowline that manages it. The process is restarted whenever it ends,
// as a service manager would do.
type node struct {
	lab     *labtest.Lab
	name    string
	dir     string // the test's, the same path on the machine and on every host
	runtime *cri.Client
	tasks   *labtest.Tasks
	calls   callLog
	before  labtest.Snapshot // of the machine without any pod

	mu      sync.Mutex
	bowline *labtest.Bowline
	mark    int64 // of the log when the current fault was armed
	held    bool  // do not restart until released
	closed  bool
	exits   []int                   // exit codes since they were last taken; -1 is a signal
	giveUp  context.CancelCauseFunc // cancels the current case
	free    chan struct{}
	done    chan struct{}
}

// maxExits bounds the exits in one case. With more, the program does not work at all.
const maxExits = 5

// sweep is the period of garbage collection here, and the minimum age of garbage.
const sweep = "400ms"

var faultID atomic.Int64

func startNode(ctx context.Context, lab *labtest.Lab, name, program, dir string) (*node, error) {
	n := &node{lab: lab, name: name, dir: dir, done: make(chan struct{}), free: make(chan struct{}, 1)}
	n.calls = callLog{filepath.Join(dir, name+".calls")}
	var err error
	if n.runtime, err = lab.CRI(ctx, name); err != nil {
		return nil, err
	}
	if n.tasks, err = labtest.WatchTasks(ctx, lab.Host(name).OutsideSocket); err != nil {
		return nil, err
	}
	// The checks of log sizes run on a timer and belong to no pod's life, so no rehearsal shows
	// them. The tests of syncloop/logs cover their failures.
	config, err := lab.WriteConfig(name, `containerLogMaxSize: "-1"`)
	if err != nil {
		return nil, err
	}
	n.bowline = &labtest.Bowline{
		Lab: lab, Host: name, Program: program, Config: config, Args: []string{"-v=2"},
		LogPath: filepath.Join(dir, name+".log"),
		Env: []string{"BOWLINE_FAULT=@" + n.faultFile(), "BOWLINE_FAULT_LOG=" + n.calls.path,
			"BOWLINE_SWEEP=" + sweep},
	}
	if err := n.write(""); err != nil {
		return nil, err
	}
	if err := n.bowline.Start(); err != nil {
		return nil, err
	}
	go n.supervise()
	return n, nil
}

func (n *node) faultFile() string { return filepath.Join(n.dir, n.name+".fault") }

func (n *node) write(spec string) error {
	tmp := n.faultFile() + ".new"
	if err := os.WriteFile(tmp, []byte(spec), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, n.faultFile())
}

// supervise restarts the process whenever it ends. It removes a fault that has struck; a fault that
// has not strikes the next process.
func (n *node) supervise() {
	defer close(n.done)
	for {
		<-n.bowline.Ended()
		code, _ := n.bowline.Wait(context.Background())
		n.mu.Lock()
		n.exits = append(n.exits, code)
		held := n.held
		if len(n.exits) > maxExits && n.giveUp != nil {
			n.giveUp(fmt.Errorf("bowline ended %d times: %s", len(n.exits), n.bowline.LogTail(300)))
		}
		n.mu.Unlock()
		if held {
			<-n.free
		}
		n.mu.Lock()
		if n.closed {
			n.mu.Unlock()
			return
		}
		if struck(n.calls.since(n.mark)) {
			_ = n.write("")
		}
		err := n.bowline.Start()
		n.mu.Unlock()
		if err != nil {
			panic("start bowline again: " + err.Error())
		}
	}
}

// arm sets a fault for the current process or the next one.
func (n *node) arm(f *fault) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mark = n.calls.mark()
	n.exits = nil
	if f == nil {
		return n.write("")
	}
	return n.write(f.spec(faultID.Add(1)))
}

// oneCase returns a context for a case on this node. It is cancelled if the program keeps exiting.
func (n *node) oneCase(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.giveUp = cancel
	return ctx, cancel
}

// since returns the calls since the fault was armed.
func (n *node) since() []entry {
	n.mu.Lock()
	mark := n.mark
	n.mu.Unlock()
	return n.calls.since(mark)
}

// hold prevents the restart after the next end of the process.
func (n *node) hold() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held = true
}

// release lets a held process start.
func (n *node) release() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.held {
		n.held = false
		n.free <- struct{}{}
	}
}

// kill kills the process; the supervisor starts the next.
func (n *node) kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p, err := os.FindProcess(n.bowline.PID()); err == nil {
		_ = p.Kill()
	}
}

// between kills the process, arms a fault while none runs, and lets the next one start: the
// previous process makes calls on timers, and must not meet a fault for the new one.
func (n *node) between(ctx context.Context, f *fault) error {
	n.mu.Lock()
	n.exits, n.held = nil, true
	n.mu.Unlock()
	n.kill()
	err := labtest.Until(ctx, 15*time.Second, "the end of "+n.name+"'s process", func(context.Context) error {
		if len(n.tookExits()) == 0 {
			return errors.New("it runs")
		}
		return nil
	})
	if err == nil {
		err = n.arm(f)
	}
	n.release()
	return err
}

// tookExits returns the exit codes since the fault was armed.
func (n *node) tookExits() []int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]int(nil), n.exits...)
}

// notStruck ends the message about a fault whose call was not made.
const notStruck = "has not struck"

// awaitStrike waits until the armed fault has struck, and then until a killed process has a
// successor that makes calls.
func (n *node) awaitStrike(ctx context.Context, f *fault) error {
	return labtest.Until(ctx, 15*time.Second, "the fault "+f.String(), func(context.Context) error {
		seen, again := false, false
		for _, e := range n.since() {
			switch {
			case e.what == "strike":
				seen = true
			case e.what == "begin" && (seen || f.random()):
				seen, again = true, true
			}
		}
		if !seen {
			return errors.New(notStruck)
		}
		if f.kills() && !again {
			return fmt.Errorf("has no successor")
		}
		return nil
	})
}

// clean waits until the machine is as it was before any pod.
func (n *node) clean(ctx context.Context, timeout time.Duration) error {
	return oracle.NothingLeft(ctx, n.lab, n.runtime, n.name, n.before, timeout)
}

func (n *node) stop(t *testing.T) {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	if err := n.bowline.Stop(); err != nil {
		t.Error(err)
	}
	<-n.done
	n.tasks.Stop()
	if err := n.runtime.Close(); err != nil {
		t.Error(err)
	}
}
