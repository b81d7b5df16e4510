package link

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestPinnedJumps: three sshds, each reached from the one before. The host keys of each are
// checked, and the error names the jump host.
func TestPinnedJumps(t *testing.T) {
	outer, inner, far := sshtest.Run(t), sshtest.Run(t), sshtest.Run(t)
	echo(t, "unix", far.Dir+"/echo.sock")
	forbids := sshtest.Run(t, "AllowTcpForwarding no")
	for _, s := range []*sshtest.Server{inner, far, forbids} {
		s.Admit(t, outer)
	}
	jump := func(s *sshtest.Server, pin string) endpoint.Jump {
		host, port, err := net.SplitHostPort(s.Address)
		testutil.Must(t, err)
		n, err := strconv.Atoi(port)
		testutil.Must(t, err)
		return endpoint.Jump{User: "root", Address: host, Port: n, HostKeys: []string{pin}}
	}
	options := func(jumps ...endpoint.Jump) endpoint.Options {
		o := far.Options()
		o.Credentials.KeyFile, o.Jumps = outer.KeyFile, jumps
		return o
	}
	l := run(t, far.URL(far.Dir+"/echo.sock"), options(jump(outer, outer.HostKey), jump(inner, inner.HostKey)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := l.Dial(ctx, "unix", far.Dir+"/echo.sock")
	testutil.Must(t, err)
	defer c.Close()
	says(t, c, strings.Repeat("far", 10000))

	for name, c := range map[string]struct {
		jumps []endpoint.Jump
		says  string
		key   bool
	}{
		"the first jump has another key":  {[]endpoint.Jump{jump(outer, inner.HostKey), jump(inner, inner.HostKey)}, "jump " + outer.Address + ": ", true},
		"the second jump has another key": {[]endpoint.Jump{jump(outer, outer.HostKey), jump(inner, outer.HostKey)}, "jump " + inner.Address + ": ", true},
		"the second jump forwards nothing": {[]endpoint.Jump{jump(outer, outer.HostKey), jump(forbids, forbids.HostKey)},
			"from the jump " + forbids.Address, false},
	} {
		t.Run(name, func(t *testing.T) {
			target, err := endpoint.Resolve(far.URL(far.Dir+"/echo.sock"), options(c.jumps...))
			testutil.Must(t, err)
			l, err := New(Config{Target: target})
			testutil.Must(t, err)
			start(t, l)
			for l.State().Err == nil {
				changed := l.Changed()
				if l.State().Err != nil {
					break
				}
				select {
				case <-changed:
				case <-ctx.Done():
					t.Fatal("nothing is known of the link")
				}
			}
			err = l.State().Err
			var key *endpoint.HostKeyError
			if !strings.Contains(err.Error(), c.says) || errors.As(err, &key) != c.key {
				t.Errorf("the error is %v", err)
			}
		})
	}
}
