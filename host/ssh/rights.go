package ssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// scriptRights prints who the login user is, and what that user may do.
const scriptRights = `export LC_ALL=C
printf 'uid %s\n' "$(id -u)"
if sudo -n true </dev/null >/dev/null 2>&1; then
	echo sudo
	if sudo -n test -S "$1" </dev/null >/dev/null 2>&1; then echo hidden; fi
fi
if [ -e "$1" ]; then echo there; fi
if [ -r "$1" ] && [ -w "$1" ]; then echo opens; fi
printf 'group %s\n' "$(stat -c %G -- "$1" 2>/dev/null)"
`

// Access is how a login user manages a host; the zero value is for root.
type Access struct {
	Sudo  bool   // the commands run with "sudo -n"
	Relay string // the program that opens the runtime's socket with sudo; see Config
}

// rightsDeadline bounds the questions and the tries of relays.
const rightsDeadline = time.Minute

// Rights asks whether and how the login user of t may manage the host whose runtime listens at
// socket. An error that is not host.ErrUnreachable says in one sentence what is missing, and the
// command or line that fixes it.
func Rights(ctx context.Context, t Transport, user, socket string) (Access, error) {
	ctx, cancel := context.WithTimeout(ctx, rightsDeadline)
	defer cancel()
	r, err := askRights(ctx, t, user, socket)
	if err != nil {
		return Access{}, err
	}
	if !r.wantsRelay() {
		sudo, err := r.decide(user, socket)
		return Access{Sudo: sudo}, err
	}
	name, err := findRelay(ctx, t, socket)
	if err == nil {
		return Access{Sudo: true, Relay: name}, nil
	}
	if errors.Is(err, host.ErrUnreachable) {
		return Access{}, fmt.Errorf("find a program that opens %s for %s: %w", socket, user, err)
	}
	_, refused := r.decide(user, socket)
	return Access{}, hint.Add(fmt.Errorf("%s (no relay: %s)", refused, messages([]byte(err.Error()))),
		"%s; or install python3, perl or socat there, with which sudo can open it", hint.Of(refused))
}

func askRights(ctx context.Context, t Transport, user, socket string) (rights, error) {
	s, err := t.Start(ctx, "exec /bin/sh -c "+shell.Quote(scriptRights)+" sh "+shell.Quote(socket))
	if err != nil {
		return rights{}, fmt.Errorf("check the privileges of %s: %w", user, err)
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
			return rights{}, fmt.Errorf("check the privileges of %s: %w", user, errors.Join(host.ErrUnreachable, a.err))
		}
		r, err := parseRights(a.data)
		if err != nil {
			return rights{}, fmt.Errorf("check the privileges of %s: %w", user, err)
		}
		return r, nil
	case <-ctx.Done():
		return rights{}, fmt.Errorf("check the privileges of %s: %w: %w", user, host.ErrUnreachable, ctx.Err())
	}
}

// rights of a login user.
type rights struct {
	root   bool
	sudo   bool   // without a password
	there  bool   // the socket exists, as far as the user can see
	opens  bool   // may open it
	hidden bool   // the socket exists, as root sees with sudo
	group  string // of the socket; empty if the user may not stat it
}

// wantsRelay: root could open the socket, but sshd as the login user cannot.
func (r rights) wantsRelay() bool { return !r.root && r.sudo && r.hidden && !r.opens }

func parseRights(data []byte) (rights, error) {
	var r rights
	known := false
	for line := range strings.Lines(string(data)) {
		// Output of a login shell before ours does not match.
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
		case word == "hidden":
			r.hidden = true
		}
	}
	if !known {
		return r, fmt.Errorf("the host answered the first request with %.200q", data)
	}
	return r, nil
}

// decide handles all cases without a relay.
func (r rights) decide(user, socket string) (sudo bool, err error) {
	sudoers := fmt.Sprintf("%s ALL=(root) NOPASSWD: ALL", user)
	mayNot := fmt.Errorf("%s may not open %s, and sshd opens sockets as the login user, whatever sudo allows", user, socket)
	switch {
	case r.root:
		return false, nil
	case !r.sudo:
		return false, hint.Add(fmt.Errorf("%s lacks the privileges of root (mounts, cgroups, /var/lib/kubelet)", user),
			"log in as root, or add the line %q to /etc/sudoers.d/bowline on the host", sudoers)
	case r.opens, !r.there && r.group == "":
		// If the socket does not exist or is not visible, the dial reports it.
		return true, nil
	case r.group != "" && r.group != "root":
		return false, hint.Add(mayNot, "run \"usermod -aG %s %s\" on the host", r.group, user)
	}
	return false, hint.Add(mayNot, "log in as root, or set \"gid\" under [grpc] in /etc/containerd/config.toml on the host to a group of %s", user)
}
