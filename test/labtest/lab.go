// Package labtest is shared by the tests that need a whole cluster. It gives each test its own lab,
// runs Bowline in one of its hosts, waits for conditions, and takes a snapshot of everything that
// pods leave on a machine. It uses the programs that hack/build-lab.sh builds and needs root.
package labtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/bowline-k8s/bowline/cri"
)

// Lab is a running lab that belongs to the caller.
type Lab struct {
	Dir    string
	Status Status // as it was when the lab came up, or at the last Refresh
	REST   *rest.Config
	Client kubernetes.Interface // as the cluster's admin

	guard *guard // nil: the lab stays
}

// Status holds the fields of "bowline-lab status -o json" that tests need.
type Status struct {
	Index   int `json:"index"`
	Cluster struct {
		APIURL          string  `json:"apiURL"`
		AdminKubeconfig string  `json:"adminKubeconfig"`
		UID             string  `json:"uid"`
		Domain          string  `json:"domain"`
		DNSIP           string  `json:"dnsIP"`
		PodCIDR         string  `json:"podCIDR"`
		ServiceCIDR     string  `json:"serviceCIDR"`
		ClientCA        string  `json:"clientCA"`
		KubeletClient   KeyPair `json:"kubeletClient"`
		Registry        string  `json:"registry"`
		RegistryAddress string  `json:"registryAddress"` // its address
		AuditLog        string  `json:"auditLog"`        // of a lab with --audit
	} `json:"cluster"`
	Hosts []Host `json:"hosts"`
}

// KeyPair names two PEM files.
type KeyPair struct {
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// Host is one lab host.
type Host struct {
	Name           string  `json:"name"` // also the node's
	IP             string  `json:"ip"`
	PodCIDR        string  `json:"podCIDR"`
	PID            int     `json:"pid"`           // in all of its namespaces
	Cgroup         string  `json:"cgroup"`        // seen from outside
	Runtime        string  `json:"runtime"`       // containerd or crio
	RuntimeSocket  string  `json:"runtimeSocket"` // the CRI's, as seen in the host
	OutsideSocket  string  `json:"outsideSocket"` // the same from outside
	Root           string  `json:"root"`          // holds the host's own directories
	NodeKubeconfig string  `json:"nodeKubeconfig"`
	Serving        KeyPair `json:"serving"`
	SSH            SSH     `json:"ssh"`
	ClientCA       string  `json:"clientCA"`
	Processes      []struct {
		Name string `json:"name"` // with the host's name before it
		PID  int    `json:"pid"`
	} `json:"processes"`
}

// RuntimeName is the name that the host's runtime reports.
func (h Host) RuntimeName() string {
	if h.Runtime == "crio" {
		return "cri-o"
	}
	return h.Runtime
}

// SSH says how to log in to a lab host.
type SSH struct {
	Address string `json:"address"` // host:port
	User    string `json:"user"`
	Key     string `json:"key"`     // file of the private key
	HostKey string `json:"hostKey"` // file of the host's public key
}

// Cache is the directory of the lab's programs: $BOWLINE_CACHE, as in hack/build-lab.sh.
func Cache() string {
	if dir := os.Getenv("BOWLINE_CACHE"); dir != "" {
		return dir
	}
	return "/var/cache/bowline"
}

// Program is the path of one of the lab's programs.
func Program(name string) string { return filepath.Join(Cache(), "bin", name) }

// Runtime returns the flags of "bowline-lab up" for the runtime that $BOWLINE_LAB_RUNTIME names:
// containerd, or crio, which hack/build-crio.sh builds. It returns none if flags already choose a
// runtime, or hosts without one.
func Runtime(flags []string) []string {
	name := os.Getenv("BOWLINE_LAB_RUNTIME")
	if name == "" || slices.Contains(flags, "--bare") || slices.Contains(flags, "--runtime") {
		return nil
	}
	return []string{"--runtime", name}
}

// Start brings up a lab with its files below dir. Down removes it, and so does the end of this
// process, unless Stay is called. more are flags of "bowline-lab up".
func Start(ctx context.Context, dir string, hosts int, more ...string) (*Lab, error) {
	l := &Lab{Dir: dir}
	var err error
	if l.guard, err = newGuard(dir); err != nil {
		return nil, err
	}
	more = append(more, Runtime(more)...)
	if out, err := l.Command(ctx, append([]string{"up", "--hosts", fmt.Sprint(hosts)}, more...)...).CombinedOutput(); err != nil {
		_ = l.Down(context.WithoutCancel(ctx)) // remove whatever came up
		return nil, fmt.Errorf("bring the lab up: %w\n%s", err, out)
	}
	if err := l.Refresh(ctx); err != nil {
		_ = l.Down(context.WithoutCancel(ctx))
		return nil, err
	}
	return l, nil
}

// Refresh reads the lab's status again.
func (l *Lab) Refresh(ctx context.Context) error {
	out, err := l.Command(ctx, "status", "-o", "json").Output()
	if err != nil {
		return fmt.Errorf("ask the lab for its status: %w", err)
	}
	if err := json.Unmarshal(out, &l.Status); err != nil {
		return fmt.Errorf("the lab's status: %w", err)
	}
	if l.REST, err = clientcmd.BuildConfigFromFlags("", l.Status.Cluster.AdminKubeconfig); err != nil {
		return err
	}
	l.REST.QPS, l.REST.Burst = 1000, 1000
	l.Client, err = kubernetes.NewForConfig(l.REST)
	return err
}

// Down removes the lab and all that it made.
func (l *Lab) Down(ctx context.Context) error {
	if out, err := l.Command(ctx, "down").CombinedOutput(); err != nil {
		return fmt.Errorf("take the lab down: %w\n%s", err, out)
	}
	l.Stay()
	return nil
}

// Stay lets the lab outlive this process.
func (l *Lab) Stay() {
	if l.guard != nil {
		l.guard.dismiss()
		l.guard = nil
	}
}

// Command is bowline-lab with args, for this lab.
func (l *Lab) Command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, Program("bowline-lab"), append([]string{"--dir", l.Dir}, args...)...)
}

// Exec is a command inside a host. Its pid and its exit code are the command's own.
func (l *Lab) Exec(ctx context.Context, host string, argv ...string) *exec.Cmd {
	return l.Command(ctx, append([]string{"exec", host, "--"}, argv...)...)
}

// StopProcess stops one process: ("", "etcd") or ("host1", "containerd").
func (l *Lab) StopProcess(ctx context.Context, host, process string) error {
	return l.process(ctx, "stop", host, process)
}

// StartProcess starts a process that StopProcess stopped.
func (l *Lab) StartProcess(ctx context.Context, host, process string) error {
	return l.process(ctx, "start", host, process)
}

func (l *Lab) process(ctx context.Context, verb, host, process string) error {
	args := []string{verb}
	if host != "" {
		args = append(args, host)
	}
	if out, err := l.Command(ctx, append(args, process)...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s %s: %w\n%s", verb, host, process, err, out)
	}
	return nil
}

// Host returns a host by its name.
func (l *Lab) Host(name string) *Host {
	for i := range l.Status.Hosts {
		if l.Status.Hosts[i].Name == name {
			return &l.Status.Hosts[i]
		}
	}
	return nil
}

// Output is the result of a command that ran to its end.
type Output struct {
	Stdout, Stderr string
	Code           int           // exit code; -1 if it did not end by itself
	Took           time.Duration // from start to end
}

// Capture runs cmd to its end. It returns an error if cmd could not run; an exit code other than 0
// is no error.
func Capture(cmd *exec.Cmd) (Output, error) {
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	cmd.Stderr = &stderr
	begin := time.Now()
	err := cmd.Run()
	out := Output{Stdout: stdout.String(), Stderr: stderr.String(), Code: -1, Took: time.Since(begin)}
	if cmd.ProcessState != nil {
		out.Code = cmd.ProcessState.ExitCode()
		err = nil
	}
	return out, err
}

// Kubectl runs kubectl as the admin.
func (l *Lab) Kubectl(ctx context.Context, args ...string) (Output, error) {
	return Capture(l.Command(ctx, append([]string{"kubectl"}, args...)...))
}

// KubectlIn runs kubectl with an input.
func (l *Lab) KubectlIn(ctx context.Context, stdin string, args ...string) (Output, error) {
	cmd := l.Command(ctx, append([]string{"kubectl"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	return Capture(cmd)
}

// KubectlAll returns what kubectl says to each of the commands, even while a test ends: for a failed
// test. Each has half a minute.
func (l *Lab) KubectlAll(commands [][]string) string {
	var b strings.Builder
	for _, args := range commands {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		out, err := l.Kubectl(ctx, args...)
		cancel()
		fmt.Fprintf(&b, "$ kubectl %s\n%s%s", strings.Join(args, " "), out.Stdout, out.Stderr)
		if err != nil {
			fmt.Fprintln(&b, err)
		}
	}
	return b.String()
}

// CRI returns a client of a host's runtime, from outside the host and independent of the process
// that manages it.
func (l *Lab) CRI(ctx context.Context, host string) (*cri.Client, error) {
	socket := l.Host(host).OutsideSocket
	return cri.Connect(ctx, cri.Config{Endpoint: "unix://" + socket, Dial: func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}})
}
