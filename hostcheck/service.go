package hostcheck

// service is the container runtime that a socket belongs to, as far as its path says: a
// fix names a unit of systemd, or a configuration file, only where that is known.
type service struct {
	name string // in a sentence
	unit string // of systemd; empty: not known
}

// serviceOf is PURE. A socket at another path may be a second containerd's, or k3s',
// which the machine's own unit does not run.
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

// command is what, and the command on the runtime's unit where that is known.
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
