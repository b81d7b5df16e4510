package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// jumpLabs are a jump host and the host behind it, with a link to that.
func jumpLabs(t *testing.T) (jump, machine *lab, l *Link) {
	t.Helper()
	jump, machine = newLab(t), newLab(t)
	jump.behind = machine
	first := *jump.target
	first.Address, first.HostKeyName, first.Name = "192.0.2.1:22", "192.0.2.1:22", "gate"
	machine.target.Jumps = []endpoint.Target{first}
	l, err := New(Config{Target: machine.target, Dial: jump.dial, Hook: machine.hook})
	testutil.Must(t, err)
	return jump, machine, l
}

func TestJump(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(jump, machine *lab)
		says  string // text of the state's error after the fault
	}{
		"the machine is silent behind a live jump": {func(_, m *lab) { m.wire(0).swallow(); m.down.Store(true) }, "no answer for 9 s"},
		"the jump is silent":                       {func(j, _ *lab) { j.wire(0).swallow(); j.down.Store(true) }, "no answer for 9 s"},
		"the machine is cut off":                   {func(_, m *lab) { m.wire(0).cut(); m.down.Store(true) }, "cut"},
		"the jump is cut off":                      {func(j, _ *lab) { j.wire(0).cut(); j.down.Store(true) }, "cut"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				jump, machine, l := jumpLabs(t)
				start(t, l)
				conn, err := l.Dial(t.Context(), "unix", "/echo")
				testutil.Must(t, err)
				says(t, conn, strings.Repeat("far", 100000))
				began := time.Now()
				c.fault(jump, machine)
				until(t, l, false)
				if after := time.Since(began); after > 10*time.Second {
					t.Errorf("it was noticed after %s", after)
				}
				if err := l.State().Err; err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("the state's error is %v", err)
				}
				if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, host.ErrUnreachable) {
					t.Errorf("a read after it: %v", err)
				}
				conn.Close()
				time.Sleep(3 * time.Second)
				if err := l.State().Err; !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "192.0.2.1:22") && !strings.Contains(err.Error(), "dial tcp") {
					t.Errorf("the next attempt: %v", err)
				}
				jump.down.Store(false)
				machine.down.Store(false)
				up(t, l)
			})
		})
	}
}

func TestJumpThatForbids(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		jump, _, l := jumpLabs(t)
		jump.behind = nil
		start(t, l)
		_, err := l.Dial(t.Context(), "unix", "/echo")
		if err == nil || !errors.Is(err, host.ErrUnreachable) || !strings.Contains(err.Error(), "from the jump 192.0.2.1:22") || !strings.Contains(err.Error(), "AllowTcpForwarding") {
			t.Errorf("got %v", err)
		}
	})
}

// TestAnyFault makes concurrent calls during random network faults. Each call ends in time, with
// an answer or with the error of the link. In the end everything works, and synctest finds no
// goroutine left behind.
func TestAnyFault(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 0))
				b := newLab(t)
				close(b.release)
				l := b.link(t)
				start(t, l)
				ctx, stop := context.WithCancel(t.Context())
				var callers sync.WaitGroup
				good := make([]atomic.Int64, 8)
				for i := range good {
					mine := rand.New(rand.NewPCG(seed, uint64(i)+1))
					callers.Go(func() {
						for ctx.Err() == nil {
							limit := time.Duration(1 + mine.IntN(int(20*time.Second)))
							began := time.Now()
							err := anyCall(ctx, l, mine, limit)
							if took := time.Since(began); took > limit+10*time.Second {
								t.Errorf("a call with %s took %s and gave %v", limit, took, err)
							}
							if err == nil {
								good[i].Add(1)
							} else if !errors.Is(err, host.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
								t.Errorf("a call gave %v", err)
							}
							time.Sleep(time.Duration(mine.IntN(int(time.Second))))
						}
					})
				}
				for range 25 {
					time.Sleep(time.Duration(random.IntN(int(15 * time.Second))))
					b.mu.Lock()
					wires := append([]*wire(nil), b.wires...)
					b.mu.Unlock()
					switch random.IntN(4) {
					case 0:
						wires[len(wires)-1].cut()
					case 1:
						wires[random.IntN(len(wires))].swallow()
					case 2:
						b.down.Store(true)
						for _, w := range wires {
							w.cut()
						}
					case 3:
						b.down.Store(false)
					}
				}
				b.down.Store(false)
				time.Sleep(2 * maxDelay)
				before := make([]int64, len(good))
				for i := range good {
					before[i] = good[i].Load()
				}
				time.Sleep(time.Minute)
				stop()
				callers.Wait()
				for i := range good {
					if good[i].Load() == before[i] {
						t.Errorf("caller %d never recovered", i)
					}
				}
				if b.most > 1 {
					t.Errorf("%d attempts in flight at once", b.most)
				}
			})
		})
	}
}

// anyCall makes one call within limit, and uses the result.
func anyCall(ctx context.Context, l *Link, random *rand.Rand, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	switch random.IntN(5) {
	case 0:
		p, err := l.Start(ctx, "cat")
		if err != nil {
			return err
		}
		defer p.Close()
		stop := context.AfterFunc(ctx, func() { p.Close() })
		defer stop()
		if _, err := io.WriteString(p.Stdin(), "knot"); err != nil {
			return closedAs(err)
		}
		_, err = io.ReadFull(p.Stdout(), make([]byte, 4))
		return closedAs(err)
	case 1:
		ln, err := l.Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", 1+random.IntN(60000)))
		if err != nil {
			return err
		}
		return ln.Close()
	case 2:
		_, err := l.Dial(ctx, "unix", "/refused")
		if errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, host.ErrUnreachable) {
			return nil
		}
		return err
	default:
		dial := l.Dial
		if random.IntN(2) == 0 {
			dial = l.DialBulk
		}
		c, err := dial(ctx, "unix", "/echo")
		if err != nil {
			return err
		}
		defer c.Close()
		deadline, _ := ctx.Deadline()
		c.SetDeadline(deadline)
		data := make([]byte, 1+random.IntN(40<<10))
		go c.Write(data)
		_, err = io.ReadFull(c, make([]byte, len(data)))
		return err
	}
}

// closedAs maps the error of a program that the deadline closed.
func closedAs(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return context.DeadlineExceeded
	}
	return err
}
