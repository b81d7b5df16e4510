package main

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/lab"
	"github.com/bowline-k8s/bowline/lab/node"
)

func execCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "exec HOST -- COMMAND...",
		Short: "Run a command inside a host, and return its exit code",
		Args:  cobra.MinimumNArgs(2),
		RunE: o.run(func(_ *cobra.Command, args []string, c lab.Config) error {
			h, err := lab.FindHost(c.Dir, args[0])
			if err != nil {
				return err
			}
			pid, ok := node.Pid(h)
			if !ok {
				return fmt.Errorf("%s does not run: bowline-lab --dir %s up", h.Name(), c.Dir)
			}
			argv := args[1:]
			if len(argv) > 0 && argv[0] == "--" {
				argv = argv[1:]
			}
			return node.Enter(h.SystemCgroup(), pid, false, argv, os.Environ())
		}),
	}
	c.Flags().SetInterspersed(false)
	return c
}

func kubeletCommand(o *options) *cobra.Command {
	var stop bool
	c := &cobra.Command{
		Use:   "kubelet HOST",
		Short: "Run the real kubelet on a host, to compare with",
		Args:  cobra.ExactArgs(1),
		RunE: o.run(func(cmd *cobra.Command, args []string, c lab.Config) error {
			if stop {
				return lab.Stop(cmd.Context(), c, args[0], "kubelet")
			}
			return lab.Start(cmd.Context(), c, args[0], "kubelet")
		}),
	}
	c.Flags().BoolVar(&stop, "stop", false, "stop it; its pods stay (see reset)")
	return c
}

func startCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "start [HOST] PROCESS",
		Short: "Start one process that was stopped or has died",
		Args:  cobra.RangeArgs(1, 2),
		RunE: o.run(func(cmd *cobra.Command, args []string, c lab.Config) error {
			host, process := hostAndProcess(args)
			return lab.Start(cmd.Context(), c, host, process)
		}),
	}
}

func stopCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "stop [HOST] PROCESS",
		Short: "Stop one process: of the control plane, or of a host",
		Args:  cobra.RangeArgs(1, 2),
		RunE: o.run(func(cmd *cobra.Command, args []string, c lab.Config) error {
			host, process := hostAndProcess(args)
			return lab.Stop(cmd.Context(), c, host, process)
		}),
	}
}

func hostAndProcess(args []string) (host, process string) {
	if len(args) == 2 {
		return args[0], args[1]
	}
	return "", args[0]
}

func resetCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "reset HOST",
		Short: "Recreate a host without its pods, images and files, and delete its Node object",
		Args:  cobra.ExactArgs(1),
		RunE: o.run(func(cmd *cobra.Command, args []string, c lab.Config) error {
			return lab.Reset(cmd.Context(), c, args[0])
		}),
	}
}

func logsCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "logs [HOST] PROCESS [-- TAIL FLAGS]",
		Short: "Show a process's log with tail(1)",
		Args:  cobra.MinimumNArgs(1),
		RunE: o.run(func(cmd *cobra.Command, args []string, c lab.Config) error {
			l, _, err := lab.Find(c.Dir)
			if err != nil {
				return err
			}
			flags := []string{"-n", "100"}
			if at := cmd.ArgsLenAtDash(); at > 0 {
				flags, args = args[at:], args[:at]
			}
			host, process := hostAndProcess(args)
			if host != "" {
				process = host + "-" + process
			}
			tail := exec.CommandContext(cmd.Context(), "tail", append(flags, l.Log(process))...)
			tail.Stdout, tail.Stderr = os.Stdout, os.Stderr
			return tail.Run()
		}),
	}
}

func loadImageCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "load-image NAME FILE",
		Short: "Put an image into the registry: FILE is an archive (docker save), a static program, or a directory",
		Long: `Put an image into the registry, for good.

FILE is an archive as docker save writes it, a static program, or a directory that holds
rootfs/ and image.json, the image's configuration such as {"Cmd": ["sh"], "User": "1234"}.`,
		Example: `  bowline-lab load-image app:v1 ./app
  bowline-lab kubectl run app --image registry.lab/app:v1`,
		Args: cobra.ExactArgs(2),
		RunE: o.run(func(cmd *cobra.Command, args []string, c lab.Config) error {
			ref, err := lab.LoadImage(cmd.Context(), c, args[0], args[1])
			if err != nil {
				return err
			}
			fmt.Println(ref)
			return nil
		}),
	}
}
