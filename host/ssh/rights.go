package ssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// scriptRights tells who the login user is, and what that user may do.
const scriptRights = `export LC_ALL=C
printf 'uid %s\n' "$(id -u)"
if sudo -n true 2>/dev/null; then echo sudo; fi
if [ -e "$1" ]; then echo there; fi
if [ -r "$1" ] && [ -w "$1" ]; then echo opens; fi
printf 'group %s\n' "$(stat -c %G -- "$1" 2>/dev/null)"
`

// Rights asks whether the login user of t may drive the machine whose runtime
// listens at socket: sudo says that the commands are to run by "sudo -n". An error
// that is not host.ErrUnreachable says in one sentence what is missing, and the line
// that mends it.
func Rights(ctx context.Context, t Transport, user, socket string) (sudo bool, err error) {
	s, err := t.Start(ctx, "exec /bin/sh -c "+shell.Quote(scriptRights)+" sh "+shell.Quote(socket))
	if err != nil {
		return false, fmt.Errorf("ask what %s may do: %w", user, err)
	}
	defer s.Close()
	type answer struct {
		data []byte
		err  error
	}
	read := make(chan answer, 1)
	go func() {
		data, err := io.ReadAll(io.LimitReader(s.Stdout(), 64<<10))
		read <- answer{data, err}
	}()
	select {
	case a := <-read:
		if a.err != nil {
			return false, fmt.Errorf("ask what %s may do: %w", user, errors.Join(host.ErrUnreachable, a.err))
		}
		r, err := parseRights(a.data)
		if err != nil {
			return false, fmt.Errorf("ask what %s may do: %w", user, err)
		}
		return r.decide(user, socket)
	case <-ctx.Done():
		return false, fmt.Errorf("ask what %s may do: %w: %w", user, host.ErrUnreachable, ctx.Err())
	}
}

// rights of a login user.
type rights struct {
	root  bool
	sudo  bool   // without a password
	there bool   // the socket is, as far as the user sees
	opens bool   // may open it
	group string // of the socket; empty where the user may not look
}

func parseRights(data []byte) (rights, error) {
	var r rights
	known := false
	for line := range strings.Lines(string(data)) {
		// What a login shell says before is no line of ours.
		switch word, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " "); {
		case word == "uid" && rest != "":
			known, r.root = true, rest == "0"
		case word == "group":
			r.group = rest
		case rest != "":
		case word == "sudo":
			r.sudo = true
		case word == "there":
			r.there = true
		case word == "opens":
			r.opens = true
		}
	}
	if !known {
		return r, fmt.Errorf("the machine answered the first request with %.200q", data)
	}
	return r, nil
}

func (r rights) decide(user, socket string) (sudo bool, err error) {
	sudoers := fmt.Sprintf("%s ALL=(root) NOPASSWD: ALL", user)
	switch {
	case r.root:
		return false, nil
	case !r.sudo:
		return false, fmt.Errorf("%s may not do what root may (mounts, cgroups, /var/lib/kubelet): log in as root, or write the line %q to /etc/sudoers.d/bowline on the machine", user, sudoers)
	case r.opens, !r.there && r.group == "":
		// A socket that is not there, or out of sight, is told by who dials it.
		return true, nil
	case r.group != "" && r.group != "root":
		return false, fmt.Errorf("%s may not open %s, which sudo does not help with: run \"usermod -aG %s %s\" on the machine", user, socket, r.group, user)
	}
	return false, fmt.Errorf("%s may not open %s, which sudo does not help with: log in as root, or set \"gid\" under [grpc] in /etc/containerd/config.toml on the machine to a group of %s's", user, socket, user)
}
