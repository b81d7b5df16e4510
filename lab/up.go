package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bowline-k8s/bowline/lab/cgroups"
	"github.com/bowline-k8s/bowline/lab/cluster"
	"github.com/bowline-k8s/bowline/lab/layout"
	"github.com/bowline-k8s/bowline/lab/node"
	"github.com/bowline-k8s/bowline/lab/proc"
	"github.com/bowline-k8s/bowline/lab/registry"
)

// patience limits how long one process may take to answer after its start.
const patience = 90 * time.Second

// sideBySide is how many hosts are made at once. Each takes dozens of short-lived processes: with a
// hundred hosts at once on few processors, all of them would be late and exceed their patience.
const sideBySide = 8

// When processors are short, a cgroup with weight n gets as much CPU as n processes of the root
// cgroup. The lab is a guest: all of it weighs as one process. Within the lab, the control plane
// outweighs the hosts; each host, with its pods, weighs as one.
const (
	labWeight     = 1
	controlWeight = 32
)

// up is one run of Up.
type up struct {
	Config
	lab   layout.Lab
	hosts int
	bare  bool
	audit bool
	keys  cluster.Keys
	start time.Time

	mu      sync.Mutex // guards Out and changed
	changed bool
}

// Up starts everything that is not running and returns once all of it answers. A second call does
// nothing.
func Up(ctx context.Context, c Config) error {
	if err := check(c.Tools); err != nil {
		return err
	}
	release, err := lock(c.Out)
	if err != nil {
		return err
	}
	defer release()
	u := &up{Config: c, start: time.Now()}
	if err := u.settle(); err != nil {
		return err
	}
	if u.keys, err = cluster.MakeKeys(u.lab); err != nil {
		return err
	}
	if err := u.bridge(); err != nil {
		return err
	}
	if err := errors.Join(cgroups.Make(u.lab.ControlCgroup()), cgroups.Weigh(u.lab.Name(), labWeight),
		cgroups.Weigh(u.lab.ControlCgroup(), controlWeight)); err != nil {
		return err
	}
	files := make([]node.Files, u.hosts)
	for i, h := range u.lab.Hosts(u.hosts) {
		if files[i], err = node.Configure(u.Tools, h, u.hosts, u.keys.CA); err != nil {
			return err
		}
	}

	// The hosts start without the control plane. Only kube-proxy needs it, and waits for it by
	// itself.
	var hosts []func(context.Context) error
	for i, h := range u.lab.Hosts(u.hosts) {
		hosts = append(hosts, func(ctx context.Context) error { return u.host(ctx, h, files[i]) })
	}
	steps := []func(context.Context) error{u.controlPlane, u.registry, func(ctx context.Context) error { return parallel(ctx, sideBySide, hosts) }}
	if err := parallel(ctx, len(steps), steps); err != nil {
		return err
	}
	if !u.changed {
		fmt.Fprintf(u.Out, "the lab in %s is up already\n", u.Dir)
		return nil
	}
	fmt.Fprintf(u.Out, "the lab in %s is up after %.1f s\n", u.Dir, time.Since(u.start).Seconds())
	return nil
}

// settle finds or makes the lab's directory, index and number of hosts.
func (u *up) settle() error {
	s, err := readState(u.Dir)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err != nil && !fresh {
		return err
	}
	if fresh {
		if entries, err := os.ReadDir(u.Dir); err == nil && len(entries) > 0 {
			return fmt.Errorf("%s is not empty and holds no lab: choose another --dir", u.Dir)
		}
		s.Index, s.Bare, s.Audit, s.First = u.Index, u.Bare, u.Audit, u.Tools.First
		s.Runtime = u.Tools.Runtime
	} else if u.Bare && !s.Bare {
		return fmt.Errorf("the lab in %s has hosts with a runtime: take it down first with \"bowline-lab --dir %s down\"", u.Dir, u.Dir)
	} else if u.Audit && !s.Audit {
		return fmt.Errorf("the lab in %s has no audit log: take it down first with \"bowline-lab --dir %s down\"", u.Dir, u.Dir)
	} else if u.Tools.First != "" && u.Tools.First != s.First {
		return fmt.Errorf("the lab in %s has other programs: take it down first with \"bowline-lab --dir %s down\"", u.Dir, u.Dir)
	} else if u.Tools.Runtime != "" && u.Tools.Runtime != s.runtime() {
		return fmt.Errorf("the hosts of the lab in %s run %s: take it down first with \"bowline-lab --dir %s down\"", u.Dir, s.runtime(), u.Dir)
	} else if u.Index != -1 && u.Index != s.Index {
		return fmt.Errorf("the lab in %s has index %d: take it down first with \"bowline-lab --dir %s down\"", u.Dir, s.Index, u.Dir)
	}
	if u.Hosts > layout.MaxHosts {
		return fmt.Errorf("a lab has at most %d hosts", layout.MaxHosts)
	}
	if u.Hosts != 0 && u.Hosts < s.Hosts {
		return fmt.Errorf("the lab in %s has %d hosts: to have fewer take it down first with \"bowline-lab --dir %s down\"", u.Dir, s.Hosts, u.Dir)
	}
	s.Hosts = max(s.Hosts, u.Hosts, 1)
	if s.Index, err = claim(u.Dir, s.Index); err != nil {
		return err
	}
	u.Tools.First, u.Tools.Runtime = s.First, s.runtime()
	if err := checkRuntime(u.Tools); err != nil {
		return err
	}
	u.lab, u.hosts, u.bare, u.audit = layout.Lab{Dir: u.Dir, Index: s.Index}, s.Hosts, s.Bare, s.Audit
	if err := checkRoutes(u.lab); err != nil {
		if fresh {
			_ = os.Remove(claimFile(s.Index))
		}
		return err
	}
	if err := os.MkdirAll(u.Dir, 0o755); err != nil {
		return err
	}
	// Write the state first without the directories that are about to be made, then with them: a
	// kill in between leaves an empty directory at worst.
	if err := s.write(u.Dir); err != nil {
		return err
	}
	made, err := makeTargets(u.lab)
	for _, dir := range made {
		if !slices.Contains(s.MadeDirs, dir) {
			s.MadeDirs = append(s.MadeDirs, dir)
		}
	}
	return errors.Join(err, s.write(u.Dir))
}

// bridge makes the link between the hosts and gives it the machine's address.
func (u *up) bridge() error {
	name, address := u.lab.Bridge(), u.lab.Gateway().String()+"/24"
	if _, err := os.Stat("/sys/class/net/" + name); err != nil {
		// Set a MAC address: otherwise the bridge takes the lowest of its ports' addresses, which
		// changes as ports come and go, and for a while the hosts would send to the previous one.
		if err := node.IP([]string{"link add " + name + " address " + u.lab.BridgeMAC() + " type bridge"}); err != nil {
			return fmt.Errorf("make a bridge (the kernel needs the bridge and veth drivers): %w", err)
		}
		u.did("bridge %s", name)
	}
	if err := node.IP([]string{"addr replace " + address + " dev " + name, "link set " + name + " up"}); err != nil {
		return err
	}
	rule := forwardRule(u.lab)
	if forwardFiltered() && exec.Command("iptables", append([]string{"-w", "-C"}, rule...)...).Run() != nil {
		if out, err := exec.Command("iptables", append([]string{"-w", "-I"}, rule...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("iptables: %s", strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// forwardRule lets frames pass between the hosts if the machine filters them.
func forwardRule(lab layout.Lab) []string {
	return []string{"FORWARD", "-i", lab.Bridge(), "-o", lab.Bridge(), "-m", "comment", "--comment", lab.Name(), "-j", "ACCEPT"}
}

// controlPlane starts etcd and the API server, then the components that need them.
func (u *up) controlPlane(ctx context.Context) error {
	if u.audit {
		if err := cluster.WriteAuditPolicy(u.lab); err != nil {
			return err
		}
	}
	for _, component := range cluster.Components {
		if err := u.daemon(cluster.Daemon(u.lab, u.keys, u.Tools.Self, u.Tools.Bin, component, u.audit)); err != nil {
			return err
		}
		if component == "kube-apiserver" {
			if err := u.healthy(ctx, component); err != nil {
				return err
			}
		}
	}
	return parallel(ctx, 3, []func(context.Context) error{
		func(ctx context.Context) error { return u.healthy(ctx, "kube-controller-manager") },
		func(ctx context.Context) error { return u.healthy(ctx, "kube-scheduler") },
		u.objects,
	})
}

// objects applies the objects that every lab has, once; after that they belong to the user.
func (u *up) objects(ctx context.Context) error {
	marker := u.lab.Path("objects-applied")
	if _, err := os.Stat(marker); err == nil {
		return nil
	}
	objects, err := cluster.Objects(u.lab)
	if err != nil {
		return err
	}
	if err := u.retryKubectl(ctx, objects, "apply", "--server-side", "--force-conflicts", "-f", "-"); err != nil {
		return fmt.Errorf("apply the lab's objects: %w", err)
	}
	if err := u.podNetworks(ctx); err != nil {
		return err
	}
	u.did("cluster DNS and rights are set")
	return os.WriteFile(marker, nil, 0o644)
}

// podNetworks waits until a node that registers gets its host's pod network: admission policies
// take effect in the API server a moment after their creation.
func (u *up) podNetworks(ctx context.Context) error {
	h := u.lab.Hosts(1)[0]
	object := fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q}}`, h.Name())
	return poll(ctx, patience, func() error {
		out, err := u.kubectl(ctx, object, "create", "--dry-run=server", "-f", "-", "-o", "jsonpath={.spec.podCIDR}")
		if err != nil && strings.Contains(err.Error(), "AlreadyExists") {
			return nil
		}
		if err == nil && out != h.PodCIDR().String() {
			err = fmt.Errorf("a new node %s would get the pod network %q, not %s", h.Name(), out, h.PodCIDR())
		}
		return err
	})
}

// registry starts the registry and waits until it has its images. It restarts a registry that is
// older than the programs of its images.
func (u *up) registry(ctx context.Context) error {
	d := registryDaemon(u.lab, u.Tools)
	if r, ok := d.Running(); ok && registry.Newer(u.Tools.Bin, r.Started) {
		if err := r.Stop(ctx, 5*time.Second); err != nil {
			return err
		}
	}
	if err := u.daemon(d); err != nil {
		return err
	}
	return u.answers(ctx, "registry", http.DefaultClient, "http://"+u.lab.RegistryAddress()+"/v2/")
}

func registryDaemon(lab layout.Lab, t node.Tools) proc.Daemon {
	return proc.Daemon{
		Name:   "registry",
		Enter:  []string{t.Self, "_enter", "--cgroup", lab.ControlCgroup(), "--"},
		Args:   []string{t.Self, "_registry", lab.Dir, strconv.Itoa(lab.Index), t.Bin},
		RunDir: lab.Path("run"), LogDir: lab.Path("logs"),
	}
}

// host makes a host and starts its daemons.
func (u *up) host(ctx context.Context, h layout.Host, f node.Files) error {
	making, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	made, err := node.Ensure(making, u.Tools, h, u.hosts)
	if err != nil {
		return err
	}
	pid, ok := node.Pid(h)
	if !ok {
		return fmt.Errorf("%s ended as soon as it was made, see %s", h.Name(), u.lab.Log(h.Process(node.Keeper)))
	}
	if made {
		u.did("%s has its namespaces", h.Name())
	} else if err := u.routes(h, pid); err != nil {
		return err
	}
	for _, component := range node.Components(u.Tools.Runtime, u.bare) {
		d, err := node.Daemon(u.Tools, h, f, pid, component)
		if err != nil {
			return err
		}
		if err := u.daemon(d); err != nil {
			return err
		}
	}
	if u.bare {
		return nil
	}
	if err := poll(ctx, patience, func() error { return ready(ctx, pid, u.Tools.Runtime) }); err != nil {
		return fmt.Errorf("%s of %s: %w, see %s", u.Tools.Runtime, h.Name(), err, u.lab.Log(h.Process(string(u.Tools.Runtime))))
	}
	return nil
}

// routes adds the routes to hosts that were created later than this one.
func (u *up) routes(h layout.Host, pid int) error {
	commands := node.Routes(h, u.hosts)
	if len(commands) == 0 {
		return nil
	}
	argv := append(node.Command(u.Tools, h, pid), "ip", "-batch", "-")
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("routes of %s: %s", h.Name(), strings.TrimSpace(string(out)))
	}
	return nil
}

func (u *up) daemon(d proc.Daemon) error {
	started, err := d.Ensure()
	if started {
		u.did("%s started", d.Name)
	}
	return err
}

// healthy waits for a component of the control plane.
func (u *up) healthy(ctx context.Context, component string) error {
	client, err := client(u.keys)
	if err != nil {
		return err
	}
	return u.answers(ctx, component, client, cluster.HealthURL(u.lab, component))
}

// answers waits until url answers 200, or returns an error if the process has died.
func (u *up) answers(ctx context.Context, process string, c *http.Client, url string) error {
	err := poll(ctx, patience, func() error {
		if r, err := proc.Read(u.lab.Path("run"), process); err == nil && !r.Alive() {
			return fatal{fmt.Errorf("it ended:\n%s", proc.Tail(u.lab.Log(process), 5))}
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := c.Do(request)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", url, resp.Status)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s does not become ready: %w, see %s", process, err, u.lab.Log(process))
	}
	return nil
}

// client returns an HTTP client with the admin's certificate.
func client(k cluster.Keys) (*http.Client, error) {
	authority, err := os.ReadFile(k.CA.CertFile())
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(k.AdminCert, k.AdminKey)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}},
	}}, nil
}

// did prints what was done, for people.
func (u *up) did(format string, args ...any) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.changed = true
	fmt.Fprintf(u.Out, "%5.1f s  %s\n", time.Since(u.start).Seconds(), fmt.Sprintf(format, args...))
}
