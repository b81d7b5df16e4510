package hostcheck

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// rights is what a login user may do on the machine.
type rights struct {
	local  bool // the user of this process
	user   string
	uid    int
	groups []string // names, or numbers of groups without a name
	sudo   bool     // "sudo -n" works
	socket *socketFile
	relay  string // the program that opens the socket with sudo if the login user may not; empty: none
}

// socketFile is the ownership of the runtime's socket; nil if it does not exist or cannot be seen.
type socketFile struct {
	path        string
	owner       string
	group       string
	permissions fs.FileMode
}

// opens reports whether the login user itself may connect. sshd dials a forwarded socket as the
// login user, so sudo helps only through a relay.
func (r rights) opens() bool {
	s := r.socket
	switch {
	case r.uid == 0 || s == nil:
		return true // or unknown: the dial will show
	case s.owner == r.user:
		return s.permissions&0o200 != 0
	case slices.Contains(r.groups, s.group):
		return s.permissions&0o020 != 0
	}
	return s.permissions&0o002 != 0
}

// checkRights: mounts and cgroups need root, and the socket must be accessible.
func checkRights(r rights) Line {
	who := fmt.Sprintf("%s (uid %d)", r.user, r.uid)
	if r.uid == 0 {
		return ok(Rights, "%s", who)
	}
	if r.local {
		return Line{Failure, Rights, "this process runs as " + who + ", but mounts and cgroups need root", "run it as root:\nsudo bowline …"}
	}
	var lacks, fix []string
	if !r.sudo {
		lacks = append(lacks, "may not use sudo without a password, but mounts and cgroups need root")
		fix = append(fix, fmt.Sprintf("echo '%s ALL=(root) NOPASSWD: ALL' >/etc/sudoers.d/bowline", r.user))
	}
	if !r.opens() && r.relay == "" {
		lacks = append(lacks, fmt.Sprintf("may not open %s (owner %s:%s, mode %04o)", r.socket.path, r.socket.owner, r.socket.group, r.socket.permissions))
		if r.socket.permissions&0o020 == 0 {
			fix = append(fix, "chmod g+rw "+r.socket.path)
		}
		fix = append(fix, fmt.Sprintf("usermod -aG %s %s", r.socket.group, r.user))
	}
	if len(lacks) > 0 {
		return Line{Failure, Rights, who + " " + strings.Join(lacks, "; and "),
			"as root on the host:\n" + strings.Join(fix, "\n") + "\nor log in as root: ssh://root@…"}
	}
	if r.relay != "" {
		return ok(Rights, "%s may use sudo without a password, and opens the socket through %s", who, r.relay)
	}
	return ok(Rights, "%s may use sudo without a password, and open the socket", who)
}

// scriptID prints what parseID parses; $1 is the socket.
const scriptID = `id -un 2>/dev/null || id -u
id -u
id -Gn 2>/dev/null || id -G
if [ "$(id -u)" != 0 ] && sudo -n true </dev/null >/dev/null 2>&1; then echo sudo; else echo; fi
stat -L -c '%U %G %a' "$1" 2>/dev/null || true`

// parseID parses the output of scriptID, line by line: user, uid, groups, "sudo" or nothing; then
// owner, group and octal mode of the socket if it can be seen.
func parseID(out, socket string) (rights, error) {
	lines := strings.Split(out, "\n")
	if len(lines) < 4 {
		return rights{}, fmt.Errorf("cannot parse the output of id: %.200q", out)
	}
	r := rights{user: lines[0], groups: strings.Fields(lines[2]), sudo: lines[3] == "sudo"}
	var err error
	if r.uid, err = strconv.Atoi(lines[1]); err != nil || r.user == "" || r.uid < 0 {
		return rights{}, fmt.Errorf("cannot parse the output of id: %.200q", out)
	}
	if len(lines) > 4 {
		if f := strings.Fields(lines[4]); len(f) == 3 {
			mode, err := strconv.ParseUint(f[2], 8, 32)
			if err != nil {
				return rights{}, fmt.Errorf("cannot parse the output of stat: %.200q", lines[4])
			}
			r.socket = &socketFile{socket, f[0], f[1], fs.FileMode(mode) & fs.ModePerm}
		}
	}
	return r, nil
}
