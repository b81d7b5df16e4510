package lab

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/bowline-k8s/bowline/lab/layout"
	"github.com/bowline-k8s/bowline/lab/node"
)

// Kubectl returns the command line and the environment of kubectl for the lab's admin.
func Kubectl(t node.Tools, lab layout.Lab, args []string) (argv, env []string) {
	return append([]string{t.Bin + "/bowline-kube", "kubectl"}, args...),
		[]string{"KUBECONFIG=" + lab.Kubeconfig("admin"), "KUBECACHEDIR=" + lab.Path("kubectl-cache")}
}

func (u *up) kubectl(ctx context.Context, input string, args ...string) (string, error) {
	argv, env := Kubectl(u.Tools, u.lab, args)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(env, "PATH=/usr/bin:/bin", "HOME="+u.Dir)
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %s", args[0], strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// retryKubectl retries a command that an API server may refuse just after its start.
func (u *up) retryKubectl(ctx context.Context, input string, args ...string) error {
	return poll(ctx, patience, func() error {
		_, err := u.kubectl(ctx, input, args...)
		return err
	})
}
