package ownership_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/ownership"
	"github.com/bowline-k8s/bowline/syncloop/owner"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// driverEnv makes this test binary one of the drivers. Its value, with newlines between: name,
// address of the sshd, key, host key, directory on the host, socket.
const driverEnv = "BOWLINE_TEST_DRIVER"

func TestMain(m *testing.M) {
	if as := os.Getenv(driverEnv); as != "" {
		klog.SetSlogLogger(slog.New(slog.DiscardHandler))
		if err := manage(strings.Split(as, "\n")); err != nil {
			fmt.Fprintln(os.Stderr, as[:1], err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// manage is a driver: it takes the host when a line on standard input tells it to, and changes the
// host as fast as it can while its fence is open. Each change bears the driver's name and the
// tenure.
func manage(as []string) error {
	name, address, key, hostKey, dir, socket := as[0], as[1], as[2], as[3], as[4], as[5]
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	target, err := endpoint.Resolve("ssh://root@"+address+socket, endpoint.Options{
		Credentials: endpoint.Credentials{KeyFile: key}, HostKeys: []string{hostKey}})
	if err != nil {
		return err
	}
	cfg := &config.Host{Name: name, Endpoint: "ssh://root@" + address + socket, RootDirectory: dir + "/root"}
	cfg.CgroupRoot = "/"
	var told atomic.Bool
	var tenure atomic.Int64
	m, err := connect.OpenSSH(ctx, cfg, func(ctx context.Context, _ string, call func(context.Context) error) error {
		// A change of a tenure may run only in that tenure.
		if of, ok := ctx.Value(tenureKey{}).(int64); ok && of != tenure.Load() {
			return host.ErrUnreachable
		}
		return call(ctx)
	}, link.Config{Target: target, MaxDelay: 50 * time.Millisecond})
	if err != nil {
		return err
	}
	defer m.Close()
	runtime, err := connect.Runtime(ctx, cfg, m, m.Hook, notify.New())
	if err != nil {
		return err
	}
	defer runtime.Close()
	claims, err := connect.Runtime(ownership.WithFenceBypass(ctx), cfg, m, m.Hook, notify.New())
	if err != nil {
		return err
	}
	defer claims.Close()

	take := func(ctx context.Context) (ownership.Claim, error) {
		c := owner.Config{Host: m, Runtime: claims, RootDir: cfg.RootDirectory, RunDir: dir + "/run", ClusterUID: "c", NodeName: "n",
			Instance: name, PID: os.Getpid(), StartedAt: time.Now(), Endpoint: socket}
		if told.Load() {
			for _, p := range owner.LockPaths(c.RootDir, c.RunDir, c.Endpoint) {
				if err := m.Host.(interface {
					Takeover(context.Context, string) error
				}).Takeover(ctx, p); err != nil {
					return nil, err
				}
			}
		}
		taken, err := owner.Take(ctx, c)
		if err != nil {
			return nil, err
		}
		told.Store(false)
		tenure.Add(1)
		return taken, nil
	}
	first := make(chan struct{})
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			told.Store(true)
			select {
			case <-first:
			default:
				close(first)
			}
		}
		os.Exit(0) // the test has ended
	}()
	<-first
	held := ownership.NewHolder(m.Fence, take)
	held.Pause = 20 * time.Millisecond
	for held.Claim == nil {
		if err := held.Acquire(ctx); err != nil {
			held.Claim = nil
		}
	}
	for i := range 4 {
		go func() {
			for n := 0; ; n++ {
				of := tenure.Load()
				tag := fmt.Sprintf("%s-%d", name, of)
				ctx, cancel := context.WithTimeout(context.WithValue(ctx, tenureKey{}, of), 10*time.Second)
				if i%2 == 0 {
					_ = runtime.UpdateRuntimeConfig(ctx, tag)
				} else {
					// A command that takes effect over some time.
					_, _ = m.Run(ctx, host.Command{Args: []string{"sh", "-c", `for n in 1 2 3 4 5 6 7 8; do echo "$1" >>"$2"; sleep 0.1; done`, "sh", tag, dir + "/done"}, Timeout: 10 * time.Second})
				}
				cancel()
				<-time.After(5 * time.Millisecond) // calls that the fence refuses return at once
			}
		}()
	}
	for {
		// Refused after lockPatience, because another process holds the lock: it asks again, like a
		// process that an operator restarts.
		if err := held.Keep(ctx, ownership.Callbacks{}); err != nil {
			lost := make(chan struct{})
			close(lost)
			held.Claim = lostClaim{lost}
		}
	}
}

// tenureKey is the context key of the tenure in which a change is made.
type tenureKey struct{}

// lostClaim stands for a claim that could not be taken.
type lostClaim struct{ lost chan struct{} }

func (c lostClaim) Lost() <-chan struct{}                      { return c.lost }
func (c lostClaim) Release(context.Context) error              { return nil }
func (c lostClaim) Stamp() string                              { return "" }
func (lostClaim) Learn(context.Context, owner.Witnesses) error { return owner.ErrNotHeld }

// driverProcess is one driver process and the connection between it and the host.
type driverProcess struct {
	name string
	wire *labtest.Wire
	cmd  *exec.Cmd
	take func() error
	fine func() // ends the current fault; nil if there is none
}

// tenures records who acted, in order, with consecutive equal entries merged.
type tenures struct {
	mu   sync.Mutex
	list []string
}

func (l *tenures) add(tag string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.list); n == 0 || l.list[n-1] != tag {
		l.list = append(l.list, tag)
	}
}

func (l *tenures) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) == 0 {
		return ""
	}
	return l.list[len(l.list)-1]
}

// returned returns those who acted again after another one had: two were driving at once.
func returned(list []string) []string {
	seen := map[string]bool{}
	var bad []string
	for _, tag := range list {
		if seen[tag] {
			bad = append(bad, tag)
		}
		seen[tag] = true
	}
	return bad
}

// takeoverPatience bounds one takeover on a very busy computer.
const takeoverPatience = 2 * time.Minute

// enough is when the test ends early on a very busy computer.
const enough = 3 * time.Minute

// TestTakeovers: two processes manage one host in turn. Each takes it while the other is paused or
// cut off in the middle of its work, and the one that comes back finds that it has lost the host.
// The test checks that there were never two, by the order of runtime calls and by the effects of
// the scripts on the host.
func TestTakeovers(t *testing.T) {
	server := sshtest.Run(t)
	dir := t.TempDir()
	var asked tenures
	rt := fake.Run(t, fake.Config{})
	rt.Inject("UpdateRuntimeConfig", fake.Fault{Times: -1, Match: func(request any) bool {
		asked.add(request.(*runtimeapi.UpdateRuntimeConfigRequest).GetRuntimeConfig().GetNetworkConfig().GetPodCidr())
		return false
	}})
	rounds, done := 0, filepath.Join(dir, "done")
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	drivers := []*driverProcess{startDriver(t, "a", server, dir, rt.Socket), startDriver(t, "b", server, dir, rt.Socket)}
	began := time.Now()
	for round := range 101 {
		winner, loser := drivers[round%2], drivers[1-round%2]
		if round > 0 {
			// In the middle of its work.
			<-time.After(time.Duration(random.IntN(int(50 * time.Millisecond))))
			loser.fault(random.IntN(2) == 0)
		}
		if winner.fine != nil {
			winner.fine()
			winner.fine = nil
		}
		before, did := asked.last(), lastLine(done)
		testutil.Must(t, winner.take())
		testutil.Within(t, takeoverPatience, fmt.Sprintf("round %d: %s manages", round, winner.name), func() bool {
			now := asked.last()
			return now != before && strings.HasPrefix(now, winner.name)
		})
		if round%4 == 0 {
			testutil.Within(t, takeoverPatience, fmt.Sprintf("round %d: a script of %s takes effect", round, winner.name), func() bool {
				now := lastLine(done)
				return now != did && strings.HasPrefix(now, winner.name)
			})
		}
		if rounds = round; time.Since(began) > enough {
			break // on a very busy computer
		}
		// The loser comes back at some time during the winner's tenure.
		if loser.fine != nil && random.IntN(2) == 0 {
			loser.fine()
			loser.fine = nil
		}
	}
	t.Logf("%d takeovers in %s", rounds, time.Since(began).Round(time.Millisecond))
	for _, d := range drivers {
		d.stop()
	}
	asked.mu.Lock()
	defer asked.mu.Unlock()
	if bad := returned(asked.list); len(bad) > 0 || len(asked.list) < rounds+1 {
		t.Errorf("the runtime was asked by %d in turn, of whom %q came back: %q", len(asked.list), bad, asked.list)
	}
	data, err := os.ReadFile(done)
	testutil.Must(t, err)
	var wrote tenures
	for line := range strings.Lines(string(data)) {
		wrote.add(strings.TrimSpace(line))
	}
	t.Logf("%d had a script take effect", len(wrote.list))
	if bad := returned(wrote.list); len(bad) > 0 || len(wrote.list) < rounds/4 {
		t.Errorf("the scripts of %d took effect in turn, of whom %q came back: %q", len(wrote.list), bad, wrote.list)
	}
}

// lastLine returns the last line of a file; empty if there is none.
func lastLine(file string) string {
	data, _ := os.ReadFile(file)
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	return lines[len(lines)-1]
}

func startDriver(t *testing.T, name string, server *sshtest.Server, dir, socket string) *driverProcess {
	t.Helper()
	wire, err := labtest.NewWire(server.Address)
	testutil.Must(t, err)
	d := &driverProcess{name: name, wire: wire, cmd: exec.Command(os.Args[0])}
	d.cmd.Env = append(os.Environ(), driverEnv+"="+strings.Join([]string{name, wire.Address(), server.KeyFile, server.HostKey, dir, socket}, "\n"))
	d.cmd.Stderr = os.Stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := d.cmd.StdinPipe()
	testutil.Must(t, err)
	d.take = func() error { _, err := in.Write([]byte("take\n")); return err }
	started := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		// Its parent-death signal is tied to the thread that starts it; this test may be killed.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := d.cmd.Start()
		started <- err
		if err == nil {
			_ = d.cmd.Wait()
		}
	}()
	testutil.Must(t, <-started)
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		<-ended
		wire.Close()
	})
	return d
}

// fault pauses the process, or drops its traffic in both directions.
func (d *driverProcess) fault(pause bool) {
	if !pause {
		d.wire.Swallow()
		d.fine = d.wire.Restore
		return
	}
	_ = d.cmd.Process.Signal(syscall.SIGSTOP)
	d.fine = func() { _ = d.cmd.Process.Signal(syscall.SIGCONT) }
}

// stop kills the process and cuts its connection.
func (d *driverProcess) stop() {
	if err := d.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		panic(err)
	}
	d.wire.Cut()
}
