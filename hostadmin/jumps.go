package hostadmin

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

// jumping is a jump before the Host exists.
type jumping struct {
	machine Machine
	at      endpoint.URL
}

// jumps pins the host keys of each jump like those of the machine, and stores them in r. It reaches
// each jump through the ones before it, with the user's own login.
func (e *Editor) jumps(ctx context.Context, r *Request) ([]jumping, error) {
	var all []jumping
	r.jumps = nil
	for _, login := range r.ProxyJump {
		u, err := r.jump(login)
		if err != nil {
			return nil, err
		}
		m := e.Machine(u.String(), r.jumps)
		pins, err := e.hostKeys(ctx, m, "--jump-host-key", r.JumpHostKeys, u)
		if err != nil {
			return nil, fmt.Errorf("jump %s: %w", u.Host, err)
		}
		all = append(all, jumping{m, u})
		r.jumps = append(r.jumps[:len(r.jumps):len(r.jumps)], endpoint.Jump{User: u.User, Address: u.Host, Port: u.Port, HostKeys: pins})
	}
	return all, nil
}

// jumpsOf are a Host's jumps as user@host:port.
func jumpsOf(h *v1alpha1.Host) (way []string) {
	for _, j := range Way(h) {
		way = append(way, login(j.User, j.Address, j.Port))
	}
	return way
}

// wanted are the request's jumps as user@host:port.
func (r *Request) wanted() (way []string) {
	for _, j := range r.ProxyJump {
		if u, err := r.jump(j); err == nil { // check reports the others
			way = append(way, login(u.User, u.Host, u.Port))
		}
	}
	return way
}

func login(user, address string, port int) string {
	return user + "@" + net.JoinHostPort(strings.ToLower(address), strconv.Itoa(cmp.Or(port, 22)))
}
