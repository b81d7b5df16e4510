package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/lab/cgroups"
	"github.com/bowline-k8s/bowline/lab/layout"
)

// Down removes the lab and everything it made. Nothing of the lab has to be intact: the index gives
// the names of everything that can be left.
func Down(ctx context.Context, c Config) error {
	if os.Geteuid() != 0 {
		return errors.New("a lab is removed by root: sudo bowline-lab down")
	}
	release, err := lock(c.Out)
	if err != nil {
		return err
	}
	defer release()
	s, err := readState(c.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		taken, claimErr := claims()
		if claimErr != nil {
			return claimErr
		}
		s.Index = -1
		for index, dir := range taken {
			if dir == c.Dir {
				s.Index = index
			}
		}
		if s.Index == -1 {
			fmt.Fprintf(c.Out, "there is no lab in %s\n", c.Dir)
			return cleanRunDir()
		}
	} else if err != nil {
		return err
	}
	lab := layout.Lab{Dir: c.Dir, Index: s.Index}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	start := time.Now()
	if err := errors.Join(removeProcesses(ctx, lab), removeLinks(lab), unmount(lab)); err != nil {
		return err
	}
	if err := handOver(c.Dir, s.MadeDirs); err != nil {
		return err
	}
	if err := os.RemoveAll(c.Dir); err != nil {
		return err
	}
	if err := os.Remove(claimFile(lab.Index)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := cleanRunDir(); err != nil {
		return err
	}
	fmt.Fprintf(c.Out, "the lab in %s is gone after %.1f s\n", c.Dir, time.Since(start).Seconds())
	return nil
}

// removeProcesses kills everything in the lab's cgroups. The namespaces of a host end with its last
// process, and with them its mounts, links and iptables rules.
func removeProcesses(ctx context.Context, lab layout.Lab) error {
	if err := cgroups.Kill(ctx, lab.Name()); err != nil {
		return err
	}
	return cgroups.Remove(ctx, lab.Name())
}

// removeLinks removes the machine's ends of the lab's links, and its iptables rule.
func removeLinks(lab layout.Lab) error {
	entries, err := os.ReadDir("/sys/class/net")
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if name != lab.Bridge() && !strings.HasPrefix(name, lab.Bridge()+"h") && !strings.HasPrefix(name, lab.Bridge()+"p") {
			continue
		}
		out, err := exec.Command("ip", "link", "del", name).CombinedOutput()
		if _, gone := os.Stat("/sys/class/net/" + name); gone == nil && err != nil {
			return fmt.Errorf("remove link %s: %s", name, strings.TrimSpace(string(out)))
		}
	}
	// Only if the rule can exist: iptables would create the table.
	if out, err := exec.Command("iptables-save", "-t", "filter").Output(); err == nil && strings.Contains(string(out), lab.Name()) {
		if out, err := exec.Command("iptables", append([]string{"-w", "-D"}, forwardRule(lab)...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("iptables: %s", strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// unmount unmounts everything below the lab's directory in this namespace. The lab itself mounts
// only in its hosts.
func unmount(lab layout.Lab) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], lab.Dir+"/") {
			points = append(points, fields[4])
		}
	}
	slices.Reverse(points)
	for _, point := range points {
		if out, err := exec.Command("umount", point).CombinedOutput(); err != nil {
			return fmt.Errorf("umount %s: %s", point, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// handOver removes the mount points that labs had to make, or leaves the list to the remaining
// labs: removing a directory would also remove what another lab's hosts have mounted on it.
func handOver(dir string, made []string) error {
	list := filepath.Join(layout.RunDir, "made-dirs")
	if data, err := os.ReadFile(list); err == nil {
		for _, d := range strings.Fields(string(data)) {
			if !slices.Contains(made, d) {
				made = append(made, d)
			}
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	taken, err := claims()
	if err != nil {
		return err
	}
	for _, other := range taken {
		if other != dir {
			return writeFile(list, []byte(strings.Join(made, "\n")+"\n"))
		}
	}
	slices.SortFunc(made, func(a, b string) int { return len(b) - len(a) })
	for _, d := range made {
		_ = os.Remove(d) // fails if it is in use by now
	}
	if err := os.Remove(list); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// cleanRunDir removes the labs' directory under /run after the last lab. The caller holds the lock
// in it. A process that waits for that lock creates it again.
func cleanRunDir() error {
	taken, err := claims()
	if err != nil || len(taken) > 0 {
		return err
	}
	for i := range layout.MaxIndex + 1 {
		_ = os.Remove(claimFile(i) + ".tmp") // left by a command that was killed
	}
	if err := os.Remove(filepath.Join(layout.RunDir, "lock")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = os.Remove(layout.RunDir) // fails if it holds anything else
	return nil
}
