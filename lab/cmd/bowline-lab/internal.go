package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/lab/layout"
	"github.com/bowline-k8s/bowline/lab/node"
	"github.com/bowline-k8s/bowline/lab/registry"
)

// The commands in this file run as the lab's own processes.

// enterCommand joins a cgroup and namespaces and executes another program.
func enterCommand() *cobra.Command {
	var cgroup string
	var pid int
	c := &cobra.Command{
		Use: "_enter --cgroup PATH [--pid PID] -- COMMAND...", Hidden: true, Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return node.Enter(cgroup, pid, true, args, os.Environ())
		},
	}
	c.Flags().StringVar(&cgroup, "cgroup", "", "")
	c.Flags().IntVar(&pid, "pid", 0, "")
	return c
}

// hostCommand is the first process of a host, in two halves.
func hostCommand() *cobra.Command {
	return &cobra.Command{
		Use: "_host DIR INDEX NUMBER HOSTS KEEPER", Hidden: true, Args: cobra.RangeArgs(5, 6),
		RunE: func(_ *cobra.Command, args []string) error {
			index, err1 := strconv.Atoi(args[1])
			number, err2 := strconv.Atoi(args[2])
			hosts, err3 := strconv.Atoi(args[3])
			if err1 != nil || err2 != nil || err3 != nil {
				return fmt.Errorf("bad arguments %q", args)
			}
			h := layout.Host{Lab: layout.Lab{Dir: args[0], Index: index}, Number: number}
			if len(args) == 6 {
				return node.Setup(h, hosts, []string{args[4], h.Name()})
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			return node.Isolate(h, append([]string{self, "_host"}, append(args, "second")...))
		},
	}
}

func registryCommand() *cobra.Command {
	return &cobra.Command{
		Use: "_registry DIR INDEX BIN", Hidden: true, Args: cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			index, err := strconv.Atoi(args[1])
			if err != nil {
				return err
			}
			l := layout.Lab{Dir: args[0], Index: index}
			return registry.Serve(cmd.Context(), l.RegistryAddress(), args[2], l.Path("registry"), l.Path("images"))
		},
	}
}

// superviseCommand restarts a program whenever it ends. The program ends with it.
func superviseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "_supervise -- COMMAND...", Hidden: true, Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			for {
				child := exec.CommandContext(ctx, args[0], args[1:]...)
				child.Stdout, child.Stderr = os.Stdout, os.Stderr
				child.Cancel = func() error { return child.Process.Signal(syscall.SIGTERM) }
				child.WaitDelay = 5 * time.Second
				child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
				err := runOnThread(child)
				if ctx.Err() != nil {
					return nil
				}
				fmt.Fprintf(os.Stderr, "%s ended (%v), started again in 1 s\n", args[0], err)
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(time.Second):
				}
			}
		},
	}
}

// runcCommand is the OCI runtime that a host's CRI-O runs.
func runcCommand() *cobra.Command {
	return &cobra.Command{
		Use: "_runc ...", Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { return node.Runc(args) },
	}
}
