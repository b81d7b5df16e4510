package hostcheck

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/host"
)

// maxRead is the most that is read of a file on the machine, in bytes.
const maxRead = 1 << 20

// examination is one check of one machine.
type examination struct {
	Config
	way    way
	local  bool
	report *Report
	gone   error // why the machine does not answer any more

	machine Machine                   // nil if the machine lacks the tools
	rights  *rights                   // nil if not known
	root    bool                      // machine runs its commands as root
	runtime *cri.Client               // nil if none answers
	config  string                    // of the runtime's Status (info); JSON for containerd
	status  *runtimeapi.RuntimeStatus // nil if none answers
	file    []byte                    // containerd's configuration, if no CRI answers
	network cni
	sysctls map[string]string
}

// all gathers in order of dependency; the report sorts the lines.
func (e *examination) all(ctx context.Context) {
	defer e.close()
	e.tools(ctx)
	if e.machine != nil {
		e.mayDo(ctx)
		e.Socket, e.RootDir = e.realPath(ctx, e.Socket), e.realPath(ctx, e.RootDir)
	}
	if e.socketOpens(ctx) {
		e.runtimeAnswers(ctx)
	}
	if e.machine != nil {
		e.exposes(ctx)
		e.cgroups(ctx)
		e.clock(ctx)
		e.disks(ctx)
		e.kernel(ctx)
		e.mounts(ctx)
		e.drivers(ctx)
	}
}

func (e *examination) close() {
	if e.runtime != nil {
		_ = e.runtime.Close()
	}
	if e.machine != nil {
		_ = e.machine.Close()
	}
}

// add drops lines once the machine is gone: they would only repeat that the connection ended.
func (e *examination) add(lines ...Line) {
	if e.gone == nil {
		e.report.add(lines...)
	}
}

func (e *examination) tools(ctx context.Context) {
	err := e.ask(ctx, func(ctx context.Context) error {
		m, err := e.way.open(ctx, false)
		if err == nil {
			e.machine = m
		}
		return err
	})
	switch {
	case err != nil && e.local:
		e.add(Line{Failure, Cgroups, err.Error(), "mount /proc and /sys/fs/cgroup"})
	case err != nil:
		e.add(Line{Failure, Tools, err.Error(), "on Debian or Ubuntu:\napt-get install coreutils findutils grep sed util-linux"})
	case !e.local: // the local machine needs none
		e.add(ok(Tools, "a shell and all required tools"))
	}
}

// run returns the output of a command. A non-zero exit code is an error.
func (e *examination) run(ctx context.Context, args ...string) (string, error) {
	var out string
	err := e.ask(ctx, func(ctx context.Context) error {
		res, err := e.machine.Run(ctx, host.Command{Args: args, Timeout: askTime})
		if err == nil && res.ExitCode != 0 {
			err = fmt.Errorf("%s ended with %d: %s", args[0], res.ExitCode, strings.TrimSpace(string(res.Stderr)))
		}
		out = string(res.Stdout)
		return err
	})
	return out, err
}

func (e *examination) read(ctx context.Context, file string) (data []byte, err error) {
	err = e.ask(ctx, func(ctx context.Context) (err error) {
		data, err = e.machine.ReadFile(ctx, file, maxRead)
		return err
	})
	return data, err
}

// realPath resolves symbolic links, as a node does.
func (e *examination) realPath(ctx context.Context, p string) string {
	out, err := e.run(ctx, "readlink", "-f", p)
	if real := strings.TrimSuffix(out, "\n"); err == nil && path.IsAbs(real) {
		return real
	}
	return p // its directory does not exist yet
}

func (e *examination) mayDo(ctx context.Context) {
	out, err := e.run(ctx, "sh", "-c", scriptID, "sh", e.Socket)
	var r rights
	if err == nil {
		r, err = parseID(out, e.Socket)
	}
	if err != nil {
		e.add(unknown(Rights, err))
		return
	}
	r.local, e.rights = e.local, &r
	if w, ok := e.way.(relayer); ok && r.uid != 0 && r.sudo && !r.opens() {
		_ = e.ask(ctx, func(ctx context.Context) (err error) {
			r.relay, err = w.relay(ctx, r.user, e.Socket)
			return err
		})
	}
	e.add(checkRights(r))
	e.root = r.uid == 0
	if e.root || !r.sudo || e.local {
		return
	}
	// Root sees more.
	_ = e.ask(ctx, func(ctx context.Context) error {
		m, err := e.way.open(ctx, true)
		if err == nil {
			_ = e.machine.Close()
			e.machine, e.root = m, true
		}
		return err
	})
}

func (e *examination) socketOpens(ctx context.Context) bool {
	s := socketState{local: e.local, path: e.Socket, mayOpen: e.rights == nil || e.rights.opens()}
	s.err = e.ask(ctx, func(ctx context.Context) error {
		c, err := e.way.dial(ctx, e.Socket)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	if s.err != nil && e.machine != nil {
		_, err := e.run(ctx, "test", "-S", e.Socket)
		s.missing = err != nil
		if table, err := e.run(ctx, "cat", "/proc/net/unix"); err == nil {
			s.listened = listenedOn(table, e.Socket)
		}
	}
	e.add(checkSocket(s))
	return s.err == nil
}

func (e *examination) runtimeAnswers(ctx context.Context) {
	runtime := serviceOf(e.Socket)
	var version *runtimeapi.VersionResponse
	var status *runtimeapi.StatusResponse
	err := e.ask(ctx, func(ctx context.Context) error {
		client, err := cri.Connect(ctx, cri.Config{Endpoint: e.Socket, Dial: func(ctx context.Context) (net.Conn, error) {
			return e.way.dial(ctx, e.Socket)
		}})
		if err != nil {
			return err
		}
		e.runtime = client
		if version, err = client.Version(ctx); err != nil {
			return err
		}
		status, err = client.Status(ctx, true)
		return err
	})
	if err != nil {
		// The file configures the machine's own containerd, not other runtimes on the machine.
		if e.machine != nil && runtime.containerd() && errors.Is(err, cri.ErrNoCRI) {
			e.file, _ = e.read(ctx, containerdConfig)
		}
		e.add(checkNoRuntime(e.Socket, err, e.file))
		return
	}
	e.add(checkRuntime(runtime, version, status.GetStatus()))
	e.add(checkEvents(runtime, e.ask(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		_, err := e.runtime.Events(ctx)
		return err
	}))...)
	e.config, e.status = status.GetInfo()["config"], status.GetStatus()
	e.network = e.cni(ctx)
	e.add(checkNetwork(runtime, status.GetStatus(), e.network))
}

// cni reads the CNI configuration, and lists the plugins.
func (e *examination) cni(ctx context.Context) cni {
	c := parseCNI(e.config)
	if e.machine == nil {
		return c
	}
	list := func(dir string) (names []string) {
		_ = e.ask(ctx, func(ctx context.Context) error {
			infos, err := e.machine.List(ctx, dir)
			for _, i := range infos {
				names = append(names, i.Name)
			}
			return err // a directory that does not exist counts as empty
		})
		return names
	}
	for _, name := range list(c.confDir) {
		if isNetworkConfig(name) {
			c.configs = append(c.configs, name)
		}
	}
	for _, dir := range c.binDirs {
		c.bins = append(c.bins, list(dir)...)
	}
	if len(c.configs) > 0 {
		if data, err := e.read(ctx, path.Join(c.confDir, c.configs[0])); err == nil {
			c.plugins, _ = parsePlugins(data) // the runtime reports what cannot be parsed
		}
	}
	return c
}
