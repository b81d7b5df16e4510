package enroll

import (
	"context"
	"fmt"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

// jumping is a jump before there is a Host.
type jumping struct {
	machine Machine
	at      endpoint.URL
}

// jumps pins the host keys of each jump, as those of the machine, and puts them into r.
// Each is reached through those before it, by the person's own login.
func (e *Enroller) jumps(ctx context.Context, r *Request) ([]jumping, error) {
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
