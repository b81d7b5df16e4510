package lab

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/lab/cgroups"
	"github.com/bowline-k8s/bowline/lab/cluster"
	"github.com/bowline-k8s/bowline/lab/layout"
	"github.com/bowline-k8s/bowline/lab/node"
	"github.com/bowline-k8s/bowline/lab/proc"
	"github.com/bowline-k8s/bowline/lab/registry"
)

// daemon describes a process of the lab. host is "" for the control plane.
func daemon(c Config, host, process string) (proc.Daemon, error) {
	lab, s, err := find(c.Dir)
	if err != nil {
		return proc.Daemon{}, err
	}
	keys, err := cluster.MakeKeys(lab)
	if err != nil {
		return proc.Daemon{}, err
	}
	if host == "" {
		if process == "registry" {
			return registryDaemon(lab, c.Tools), nil
		}
		if !slices.Contains(cluster.Components, process) {
			return proc.Daemon{}, fmt.Errorf("the control plane has no %q: it is one of %v or registry; a host's processes are named as HOST PROCESS", process, cluster.Components)
		}
		return cluster.Daemon(lab, keys, c.Tools.Self, c.Tools.Bin, process, s.Audit), nil
	}
	h, err := FindHost(c.Dir, host)
	if err != nil {
		return proc.Daemon{}, err
	}
	pid, ok := node.Pid(h)
	if !ok {
		return proc.Daemon{}, fmt.Errorf("%s does not run: bowline-lab --dir %s up", host, c.Dir)
	}
	c.Tools.First, c.Tools.Runtime = s.First, s.runtime()
	files, err := node.Configure(c.Tools, h, s.Hosts, keys.CA)
	if err != nil {
		return proc.Daemon{}, err
	}
	return node.Daemon(c.Tools, h, files, pid, process)
}

// Start starts one process of the lab unless it runs. host is "" for the control plane.
func Start(_ context.Context, c Config, host, process string) error {
	d, err := daemon(c, host, process)
	if err != nil {
		return err
	}
	if _, err := os.Stat(d.Args[0]); err != nil {
		return fmt.Errorf("%w: hack/build-lab.sh", err)
	}
	started, err := d.Ensure()
	if err == nil && !started {
		fmt.Fprintf(c.Out, "%s runs already\n", d.Name)
	}
	return err
}

// Stop stops one process of the lab. The next Up starts it again.
func Stop(ctx context.Context, c Config, host, process string) error {
	d, err := daemon(c, host, process)
	if err != nil {
		return err
	}
	r, running := d.Running()
	if !running {
		proc.Forget(d.RunDir, d.Name)
		return nil
	}
	if err := r.Stop(ctx, 20*time.Second); err != nil {
		return fmt.Errorf("stop %s: %w", d.Name, err)
	}
	proc.Forget(d.RunDir, d.Name)
	return nil
}

// Reset recreates one host: it kills every process in the host, and removes its pods, images, files
// and node.
func Reset(ctx context.Context, c Config, name string) error {
	h, err := FindHost(c.Dir, name)
	if err != nil {
		return err
	}
	if err := wipe(ctx, c, h); err != nil {
		return err
	}
	c.Hosts, c.Index = 0, -1
	if err := Up(ctx, c); err != nil {
		return err
	}
	u := &up{Config: c, lab: h.Lab}
	_, err = u.kubectl(ctx, "", "delete", "node", name, "--ignore-not-found")
	return err
}

func wipe(ctx context.Context, c Config, h layout.Host) error {
	release, err := lock(c.Out)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := cgroups.Kill(ctx, h.Cgroup()); err != nil {
		return err
	}
	if err := cgroups.Remove(ctx, h.Cgroup()); err != nil {
		return err
	}
	for _, component := range append([]string{node.Keeper, "kubelet", string(layout.CRIO)}, node.Components(layout.Containerd, false)...) {
		proc.Forget(h.Lab.Path("run"), h.Process(component))
	}
	return os.RemoveAll(h.Path("root"))
}

// LoadImage puts an image into the lab's registry permanently: it survives a restart of the
// registry. It returns the reference to pull it by.
func LoadImage(ctx context.Context, c Config, image, path string) (string, error) {
	lab, _, err := find(c.Dir)
	if err != nil {
		return "", err
	}
	image = strings.TrimPrefix(image, layout.Registry+"/")
	if !strings.Contains(image, ":") {
		image += ":latest"
	}
	img, err := registry.Load(path)
	if err != nil {
		return "", err
	}
	if err := registry.Push(ctx, lab.RegistryAddress(), image, img); err != nil {
		return "", fmt.Errorf("push to the lab's registry (does it run? bowline-lab up): %w", err)
	}
	return layout.Registry + "/" + image, registry.Keep(lab.Path("images"), image, img)
}
