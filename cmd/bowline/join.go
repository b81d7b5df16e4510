package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/mountns"
)

func joinCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "join SOCKET -- COMMAND...",
		Short: "Run a command of this program in the mount namespace of a container runtime",
		Long: fmt.Sprintf(`Run another command of this program in the mount namespace of the process that serves a
unix socket. With the socket of a container runtime, the command sees the files, mounts
and programs of the host as the runtime does. Use it in a pod on that host; the pod must
be privileged, use hostPID, and mount the directory of the socket.

The command finds the pod's own mounts below %[1]s. In a pod with a service
account, it first writes a kubeconfig of that account. Pass it to the command:
  --kubeconfig %[1]s%[2]s`, mountns.PodRoot, mountns.AccountFile),
		Example: `  bowline join /run/containerd-two/containerd.sock -- run --config ` + mountns.PodRoot + `/etc/bowline/config.yaml`,
		Hidden:  true, // only the chart's pods use it
		Args: func(c *cobra.Command, args []string) error {
			if len(args) >= 2 {
				return nil
			}
			return missing(c, []string{"SOCKET", "COMMAND"}[len(args):])
		},
		RunE: func(c *cobra.Command, args []string) error {
			if c.ArgsLenAtDash() != 1 {
				return errors.New("write -- between the socket and the command")
			}
			ctx, cancel := context.WithTimeout(c.Context(), 10*time.Second)
			defer cancel()
			pid, err := mountns.ServedBy(ctx, args[0])
			if err != nil {
				return err
			}
			if err := mountns.WriteAccount(mountns.ServiceAccountDir, mountns.AccountFile, os.Getenv); err != nil {
				return err
			}
			return mountns.Exec(pid, args[1:])
		},
	}
	return c
}
