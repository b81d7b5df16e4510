package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// recorder is a CRI socket that forwards every call to a runtime, and records the changing calls
// and the connection of each.
type recorder struct {
	server *grpc.Server
	client *grpc.ClientConn
	answer func(method string, message []byte) ([]byte, error) // changes a reply; nil: the runtime's reply is forwarded

	mu    sync.Mutex
	calls []recorded
}

// recorded is one call; by is the sshd that carried it, one for each SSH connection.
type recorded struct{ by, method string }

// changes are the calls that only a host's driver makes, including exec probes.
var changes = []string{"RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "CreateContainer", "StartContainer", "StopContainer",
	"RemoveContainer", "UpdateContainerResources", "UpdateRuntimeConfig", "PullImage", "RemoveImage", "ExecSync", "ReopenContainerLog"}

// newRecorder listens at path for the runtime at another path, both as seen from this process.
func newRecorder(t *testing.T, path, runtime string, answer func(string, []byte) ([]byte, error)) *recorder {
	t.Helper()
	r := &recorder{answer: answer}
	var err error
	r.client, err = grpc.NewClient("passthrough:///runtime", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}), grpc.MaxCallRecvMsgSize(16<<20), grpc.MaxCallSendMsgSize(16<<20)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", runtime)
		}))
	testutil.Must(t, err)
	r.server = grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(r.pass),
		grpc.MaxRecvMsgSize(16<<20), grpc.MaxSendMsgSize(16<<20))
	l, err := net.Listen("unix", path)
	testutil.Must(t, err)
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(peers{l.(*net.UnixListener)}) }()
	t.Cleanup(func() {
		r.server.Stop()
		if err := errors.Join(<-served, r.client.Close()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// pass forwards one call.
func (r *recorder) pass(_ any, in grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(in)
	method := full[strings.LastIndexByte(full, '/')+1:]
	if who, ok := peer.FromContext(in.Context()); ok && slices.Contains(changes, method) {
		r.mu.Lock()
		r.calls = append(r.calls, recorded{who.Addr.String(), method})
		r.mu.Unlock()
	}
	ctx := in.Context()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md) // it holds containerd's namespace
	}
	out, err := r.client.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, full)
	if err != nil {
		return err
	}
	go func() {
		var message []byte
		for in.RecvMsg(&message) == nil {
			if out.SendMsg(&message) != nil {
				return
			}
		}
		_ = out.CloseSend()
	}()
	for {
		var message []byte
		switch err := out.RecvMsg(&message); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case r.answer != nil:
			if message, err = r.answer(method, message); err != nil {
				return err
			}
		}
		if err := in.SendMsg(&message); err != nil {
			return err
		}
	}
}

// drivers returns the connections that made changes, in turn.
func (r *recorder) drivers() (list []string, calls int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.calls {
		if n := len(list); n == 0 || list[n-1] != c.by {
			list = append(list, c.by)
		}
	}
	return list, len(r.calls)
}

// rawCodec passes messages through unchanged.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = slices.Clone(data); return nil }
func (rawCodec) Name() string                       { return "proto" }

// peers uses the process at the other end of each connection as its address.
type peers struct{ *net.UnixListener }

func (l peers) Accept() (net.Conn, error) {
	c, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return nil, errors.Join(err, credErr)
	}
	return peerConn{c, cred.Pid}, nil
}

type peerConn struct {
	*net.UnixConn
	pid int32
}

func (c peerConn) RemoteAddr() net.Addr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprint("process ", c.pid)}
}

// Two Bowlines have one node and one machine. Repeatedly the active one is paused or cut off, the
// other takes over, and the former comes back. The recorder in front of the runtime's socket shows
// who makes changes: never two at a time. A pod counts all the while.
func TestTwoDrivers(t *testing.T) {
	serial(t)
	onlyRemote(t)
	ns := namespace(t)
	dir := hostDir(t)
	const (
		socket = "/run/recorded.sock"
		rounds = 3 // paused, cut off, paused
	)
	h := lab.Host(host)
	rec := newRecorder(t, fmt.Sprintf("/proc/%d/root%s", h.PID, socket), h.OutsideSocket, nil)
	withoutBowline(t, func() {
		type driver struct {
			*labtest.Bowline
			wire *labtest.Wire
		}
		var all []*driver
		start := func(n int) *driver {
			w, err := labtest.NewWire(h.SSH.Address)
			testutil.Must(t, err)
			lines, err := lab.SSHLines(host, w.Address())
			testutil.Must(t, err)
			lines[0] = strings.Replace(lines[0], h.RuntimeSocket, socket, 1)
			file := filepath.Join(dir, fmt.Sprintf("driver-%d.yaml", n))
			testutil.Must(t, os.WriteFile(file, []byte(lab.ConfigYAML(host, lines...)), 0o644))
			d := &driver{&labtest.Bowline{Lab: lab, Host: host, Wire: w, Config: file, Args: []string{"-v=2"}, LogPath: bowline.LogPath}, w}
			testutil.Must(t, d.Start())
			all = append(all, d)
			return d
		}
		defer func() {
			for _, d := range all {
				if d.Running() {
					_ = syscall.Kill(d.PID(), syscall.SIGCONT)
				}
				d.wire.Restore()
				if err := d.Stop(); err != nil {
					t.Error(err)
				}
				d.wire.Close()
			}
		}()
		manages := func(n int) {
			name := fmt.Sprintf("round-%d", n)
			create(t, ns, fmt.Sprintf("metadata: {name: %s}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers: [{name: main, image: $TOOLBOX, command: [sleep, infinity]}]\n", name))
			ready(t, ns, name)
		}
		now := start(0)
		counted(t, ns, "lives", dir, 1)
		before := readyPods(t, ns, "lives", 1)
		manages(0)
		for round := 1; round <= rounds; round++ {
			former := now
			if round%2 == 1 {
				testutil.Must(t, syscall.Kill(former.PID(), syscall.SIGSTOP))
			} else {
				former.wire.Swallow()
			}
			now = start(round)
			manages(round)
			// The former one takes its link for down, and may still reach the API server: the
			// node's status must be that of the active one.
			until(t, "the node's link is up", wantCondition("LinkUp", v1.ConditionTrue))
			// The former one comes back, detects that it has lost the machine, and gives up.
			if round%2 == 1 {
				testutil.Must(t, syscall.Kill(former.PID(), syscall.SIGCONT))
			} else {
				former.wire.Restore()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			code, err := former.Wait(ctx)
			cancel()
			if err != nil || code == 0 {
				t.Errorf("round %d: the former driver ended with %d, %v", round, code, err)
			}
		}
		after := readyPods(t, ns, "lives", 1)
		same(t, &before[0], &after[0])
		if n := starts(t, dir, after[0].Name); n != 1 || after[0].Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("%s has started %d times, and says %d restarts", after[0].Name, n, after[0].Status.ContainerStatuses[0].RestartCount)
		}
		drivers, calls := rec.drivers()
		t.Logf("%d changes by %q", calls, drivers)
		turns := map[string]int{}
		for _, by := range drivers {
			turns[by]++
		}
		for by, n := range turns {
			if n > 1 {
				t.Errorf("%s changed something after another had, %d times", by, n-1)
			}
		}
		if len(drivers) < rounds+1 {
			t.Errorf("%d drivers, and not %d", len(drivers), rounds+1)
		}
	})
}
