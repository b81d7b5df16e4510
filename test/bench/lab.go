package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// labProgram manages the lab; hack/build-lab.sh builds it.
const labProgram = "bowline-lab"

// theHost is the lab host that every system manages.
const theHost = "host1"

// lab is a lab with one host, as `bowline-lab status -o json` describes it.
type lab struct {
	dir     string
	owned   bool   // started by this program, which removes it at the end
	runtime string // of its host

	Cluster struct {
		AdminKubeconfig string `json:"adminKubeconfig"`
		DNSIP           string `json:"dnsIP"`
		Domain          string `json:"domain"`
		ClientCA        string `json:"clientCA"`
	} `json:"cluster"`
	Hosts []struct {
		Name           string `json:"name"`
		IP             string `json:"ip"`
		OutsideSocket  string `json:"outsideSocket"`
		NodeKubeconfig string `json:"nodeKubeconfig"`
		SSH            struct {
			Address string `json:"address"`
			User    string `json:"user"`
			Key     string `json:"key"`
			HostKey string `json:"hostKey"`
		} `json:"ssh"`
		Serving struct {
			Cert string `json:"cert"`
			Key  string `json:"key"`
		} `json:"serving"`
		Processes []struct {
			Name string `json:"name"`
			PID  int    `json:"pid"`
		} `json:"processes"`
	} `json:"hosts"`
}

// The container runtimes, under the names that the lab uses for them and for their processes.
const (
	runtimeContainerd = "containerd"
	runtimeCRIO       = "crio"
)

// socket is the path of the runtime's socket inside the host.
func (l *lab) socket() string {
	if l.runtime == runtimeCRIO {
		return "/run/crio/crio.sock"
	}
	return containerdSocket
}

func openLab(ctx context.Context, dir, runtime string) (*lab, error) {
	if _, err := exec.LookPath(labProgram); err != nil {
		return nil, fmt.Errorf("%s is not on the PATH; hack/build-lab.sh makes it and says where: %w", labProgram, err)
	}
	l := &lab{dir: dir, runtime: runtime}
	if dir == "" {
		made, err := os.MkdirTemp("", "bowline-bench-")
		if err != nil {
			return nil, err
		}
		l.dir, l.owned = made, true
	}
	if _, err := l.do(ctx, "up", "--hosts", "1", "--runtime", runtime); err != nil {
		return nil, errors.Join(err, l.close())
	}
	// The cluster's DNS would add two pods to whichever node comes first.
	if _, err := l.do(ctx, "kubectl", "-n", "kube-system", "delete", "deployment", "--all", "--wait"); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, l.read(ctx)
}

// close removes the lab if this program started it.
func (l *lab) close() error {
	if !l.owned {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := l.do(ctx, "down")
	return errors.Join(err, os.RemoveAll(l.dir))
}

// do runs one command of the lab.
func (l *lab) do(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, labProgram, append([]string{"--dir", l.dir}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s%s", labProgram, strings.Join(args, " "), err, out, stderr.String())
	}
	return out, nil
}

// inHost returns a command that becomes a process inside the host, with the same pid.
func (l *lab) inHost(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, labProgram, append([]string{"--dir", l.dir, "exec", theHost, "--"}, args...)...)
}

// read reads the lab's current status.
func (l *lab) read(ctx context.Context) error {
	out, err := l.do(ctx, "status", "-o", "json")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, l); err != nil {
		return fmt.Errorf("%s status: %w", labProgram, err)
	}
	if len(l.Hosts) == 0 {
		return errors.New("the lab has no host")
	}
	return nil
}

// pid returns the pid of a process of the host: its runtime or "kubelet".
func (l *lab) pid(ctx context.Context, component string) (int, error) {
	if err := l.read(ctx); err != nil {
		return 0, err
	}
	for _, p := range l.Hosts[0].Processes {
		if p.Name == theHost+"-"+component && p.PID > 0 {
			return p.PID, nil
		}
	}
	return 0, fmt.Errorf("%s has no running %s", theHost, component)
}
