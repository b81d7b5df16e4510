package hostcheck

// service is the container runtime that a socket belongs to, as far as its path shows. A fix names
// a systemd unit or a configuration file only if that is known.
type service struct {
	name string // as a sentence names it
	unit string // systemd unit; empty: not known
}

// serviceOf is pure. A socket at another path may belong to a second containerd, or to that of k3s,
// which are not the machine's own unit.
func serviceOf(socket string) service {
	switch socket {
	case "/run/containerd/containerd.sock", "/var/run/containerd/containerd.sock":
		return service{"containerd", "containerd"}
	case "/run/crio/crio.sock", "/var/run/crio/crio.sock":
		return service{"CRI-O", "crio"}
	}
	return service{"the container runtime", ""}
}

func (s service) containerd() bool { return s.unit == "containerd" }

// command is what, followed by the command on the runtime's unit if that is known.
func (s service) command(what, command string) string {
	if s.unit == "" {
		return what
	}
	return what + ":\n" + command + " " + s.unit
}

func (s service) start() string   { return s.command("start "+s.name, "systemctl enable --now") }
func (s service) restart() string { return s.command("restart "+s.name, "systemctl restart") }
func (s service) logs() string {
	return s.command("see what "+s.name+" logs", "journalctl -u")
}
