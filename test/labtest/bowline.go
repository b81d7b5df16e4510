package labtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Bowline is a Bowline process in a lab host, or beside it.
type Bowline struct {
	Lab  *Lab
	Host string
	// Wire, if not nil, leads to Host's sshd: the process runs on the machine itself, outside every
	// host, and manages Host over it.
	Wire *Wire
	// Apart, if not nil, isolates the process that manages Host over Wire.
	Apart *Apart
	// Program is the program to run; BuiltBowline() if empty.
	Program string
	// Config is the file with the BowlineConfiguration. If it is empty, Start writes one with
	// Lab.WriteConfig.
	Config string
	// Extra are lines of the host in the file that Start writes.
	Extra []string
	// Args follow "run --config FILE", Env is added to the test's own.
	Args, Env []string
	// LogPath is the file to which its output is appended; in the lab's directory if empty.
	LogPath string

	process *Process // nil before the first start
}

// BuiltBowline is $BOWLINE_BIN, or bin/bowline at the root of the module.
func BuiltBowline() (string, error) {
	if path := os.Getenv("BOWLINE_BIN"); path != "" {
		return path, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, "bin", "bowline")
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", errors.New("bowline is not built: run make build, or set BOWLINE_BIN")
}

// ConfigYAML is a BowlineConfiguration for a host of the lab. extra are further lines of the host,
// such as "allowForeignPods: true".
func (l *Lab) ConfigYAML(host string, extra ...string) string {
	return l.ConfigHead() + l.ConfigHost(host, extra...)
}

// AnyDisk lists lines of a BowlineConfiguration, and of config in the chart's values. They switch
// off disk eviction and image GC: a test must not depend on how full the machine's disk is.
var AnyDisk = []string{"evictionHard: {memory.available: 100Mi}", "imageGCHighThresholdPercent: 100"}

// ConfigHead is the beginning of a BowlineConfiguration of hosts of the lab, with AnyDisk.
func (l *Lab) ConfigHead() string {
	return strings.Join([]string{
		"apiVersion: bowline.io/v1alpha1",
		"kind: BowlineConfiguration",
		"clusterDNS: [" + l.Status.Cluster.DNSIP + "]",
		strings.Join(AnyDisk, "\n"),
		"hosts:",
	}, "\n") + "\n"
}

// ConfigHost are the lines of one host after ConfigHead.
func (l *Lab) ConfigHost(host string, extra ...string) string {
	h := l.Host(host)
	lines := []string{
		"- nodeName: " + h.Name,
		"  kubeconfig: " + h.NodeKubeconfig,
		"  nodeIP: " + h.IP,
		"  server:",
		"    tlsCertFile: " + h.Serving.Cert,
		"    tlsPrivateKeyFile: " + h.Serving.Key,
		"  authentication:",
		"    x509: {clientCAFile: " + h.ClientCA + "}",
	}
	// containerd's socket is the default.
	named := func(line string) bool { return strings.HasPrefix(line, "endpoint:") }
	if h.Runtime != "containerd" && !slices.ContainsFunc(extra, named) {
		lines = append(lines, "  endpoint: unix://"+h.RuntimeSocket)
	}
	for _, line := range extra {
		lines = append(lines, "  "+line)
	}
	return strings.Join(lines, "\n") + "\n"
}

// SSHLines are lines of ConfigYAML for a host whose sshd is at address.
func (l *Lab) SSHLines(host, address string) ([]string, error) {
	h := l.Host(host)
	key, err := os.ReadFile(h.SSH.HostKey)
	if err != nil {
		return nil, err
	}
	return []string{
		fmt.Sprintf("endpoint: ssh://%s@%s%s", h.SSH.User, address, h.RuntimeSocket),
		"ssh:",
		"  identityFile: " + h.SSH.Key,
		fmt.Sprintf("  hostKeys: [%q]", strings.TrimSpace(string(key))),
	}, nil
}

// WriteConfig writes ConfigYAML to the lab's directory and returns its path.
func (l *Lab) WriteConfig(host string, extra ...string) (string, error) {
	path := filepath.Join(l.Dir, "bowline-"+host+".yaml")
	return path, os.WriteFile(path, []byte(l.ConfigYAML(host, extra...)), 0o644)
}

// Start starts the process; it does not wait for the node.
func (b *Bowline) Start() error {
	if b.Running() {
		return errors.New("bowline runs already")
	}
	program, config := b.Program, b.Config
	var err error
	if program == "" {
		if program, err = BuiltBowline(); err != nil {
			return err
		}
	}
	if config == "" {
		extra := b.Extra
		if b.Wire != nil {
			ssh, err := b.Lab.SSHLines(b.Host, b.Wire.Address())
			if err != nil {
				return err
			}
			extra = append(ssh, extra...)
		}
		if config, err = b.Lab.WriteConfig(b.Host, extra...); err != nil {
			return err
		}
	}
	if b.LogPath == "" {
		b.LogPath = filepath.Join(b.Lab.Dir, "bowline-"+b.Host+".log")
	}
	// A process in a host ends with the lab, at the latest.
	argv := append([]string{program, "run", "--config", config}, b.Args...)
	env := append(os.Environ(), b.Env...)
	var cmd *exec.Cmd
	var begin io.WriteCloser
	if b.Apart != nil {
		if argv[0], err = b.Apart.program(b.Lab, program); err != nil {
			return err
		}
		if err := b.Apart.grant(config, 2); err != nil {
			return err
		}
		cmd = b.Apart.command(context.Background(), env, argv...)
		if begin, err = cmd.StdinPipe(); err != nil {
			return err
		}
	} else if b.Wire != nil {
		cmd = exec.Command(argv[0], argv[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	} else {
		cmd = b.Lab.Exec(context.Background(), b.Host, argv...)
	}
	if b.Apart == nil {
		cmd.Env = env
	}
	process, err := StartProcess("bowline", cmd, b.LogPath)
	if err != nil {
		return err
	}
	b.process = process
	if b.Apart != nil {
		if err := b.Apart.connect(b.Lab, b.Wire, b.PID(), begin); err != nil {
			b.Kill()
			return err
		}
	}
	return nil
}

// PID is the pid of Bowline itself.
func (b *Bowline) PID() int { return b.process.PID() }

// Running reports whether it was started and has not ended.
func (b *Bowline) Running() bool { return b.process.Running() }

// Wait returns the exit code once the process has ended by itself; -1 for a signal.
func (b *Bowline) Wait(ctx context.Context) (int, error) { return b.process.Wait(ctx) }

// Kill ends it at once with SIGKILL.
func (b *Bowline) Kill() { b.process.End(syscall.SIGKILL) }

// Keep starts the process and restarts it whenever it has no host left to manage (exit code 1), as
// a service manager would: an overloaded machine may not answer in time. It calls fault for any
// other exit. end ends the process for good: with a dump of all goroutines in its log, or without.
func (b *Bowline) Keep(fault func(code int)) (end func(dump bool), err error) {
	if err := b.Start(); err != nil {
		return nil, err
	}
	stop, kept := make(chan bool), make(chan struct{})
	go func() {
		defer close(kept)
		for {
			select {
			case dump := <-stop:
				if dump {
					b.process.End(syscall.SIGQUIT)
				}
				b.Kill()
				return
			case <-b.Ended():
			}
			if code := b.process.ExitCode(); code != 1 {
				fault(code)
				<-stop
				return
			}
			if err := b.Start(); err != nil {
				fault(-1)
				<-stop
				return
			}
		}
	}()
	return func(dump bool) {
		stop <- dump
		<-kept
	}, nil
}

// Stop sends SIGTERM and waits; after 15 s it sends SIGKILL and returns an error.
func (b *Bowline) Stop() error { return b.process.Stop(15 * time.Second) }

// Ended is closed when the process has ended.
func (b *Bowline) Ended() <-chan struct{} { return b.process.Ended() }

// LogTail is the end of its output, for a failed test.
func (b *Bowline) LogTail(bytes int) string {
	data, err := os.ReadFile(b.LogPath)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-bytes):])
}
