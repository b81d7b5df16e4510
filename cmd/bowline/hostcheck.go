package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/hostadmin"
	"github.com/bowline-k8s/bowline/hostcheck"
)

// errReported makes the program exit with status 1 and no message: all has been printed.
var errReported = errors.New("reported")

func hostCheckCommand() *cobra.Command {
	var flags hostFlags
	var way access
	var output, namespace, exposure string
	c := &cobra.Command{
		Use:   "check ENDPOINT|NAME",
		Short: "Check whether a machine can be a node, without changing it",
		Long: `Check a machine before it becomes a node: the connection, privileges, the container
runtime and its network, cgroups, disks, kernel settings, and whether something else
manages it. Each line says what was found and, if it is a problem, how to fix it.
The check changes nothing; "host prepare" applies some of the fixes.

NAME is a Host object: this command connects to it from here, with the host keys of
the object and the key of its Secret.

The exit status is 0 when there is no failure, and 1 otherwise.`,
		Example: `  bowline host check unix:///run/containerd/containerd.sock
  bowline host check box-1
  bowline host check --identity-file ~/.ssh/id_ed25519 --host-key SHA256:… \
    ssh://root@10.0.0.7/run/containerd/containerd.sock`,
		Args:              arguments("ENDPOINT or NAME"),
		ValidArgsFunction: completeHosts(&way),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkOutput(c, output); err != nil {
				return err
			}
			if err := hostadmin.CheckExposure(v1alpha1.KubeletExposure(exposure)); err != nil {
				return err
			}
			cfg, err := func() (*hostcheck.Config, error) {
				if strings.ContainsAny(args[0], "/:") {
					cfg, err := flags.check(c, args[0])
					if err == nil {
						cfg.Expose = hostadmin.ExposedPort(v1alpha1.KubeletExposure(exposure))
					}
					return cfg, err
				}
				if exposure != "" {
					return nil, errors.New("--kubelet-exposure: the Host object sets it")
				}
				if given := sshFlags(c); len(given) > 0 {
					return nil, fmt.Errorf("%s: only for ssh:// endpoints; a Host object has its own", strings.Join(given, ", "))
				}
				objects, client, err := way.clients()
				if err != nil {
					return nil, err
				}
				cfg, err := hostadmin.CheckOf(c.Context(), objects, client, namespace, args[0], flags.rootDir)
				if err == nil {
					cfg.AllowSwap = !flags.failSwapOn
				}
				return cfg, err
			}()
			if err != nil {
				return err
			}
			quiet() // what the link would log is in the report
			report := hostcheck.Run(c.Context(), *cfg)
			if c.Context().Err() != nil {
				return errors.New("interrupted")
			}
			if err := printReport(c.OutOrStdout(), report, output); err != nil {
				return err
			}
			if !report.Fit {
				return errReported
			}
			return nil
		},
	}
	flags.register(c)
	failSwapOnFlag(c, &flags.failSwapOn)
	way.register(c)
	namespaceFlag(c, &namespace)
	exposureFlag(c, &exposure)
	outputFlag(c, &output)
	return c
}

func exposureFlag(c *cobra.Command, to *string) {
	c.Flags().StringVar(to, "kubelet-exposure", "", "where the API server connects for logs and exec: process (Bowline's address, default) or host")
	choices(c, "kubelet-exposure", "process", "host")
}

// sshFlags returns the given flags that have no effect on a local socket.
func sshFlags(c *cobra.Command) []string {
	var given []string
	for _, name := range []string{"identity-file", "certificate-file", "passphrase-file", "agent-socket", "known-hosts", "host-key", "ssh-config", "proxy-jump", "jump-host-key"} {
		if c.Flags().Changed(name) {
			given = append(given, "--"+name)
		}
	}
	return given
}

func printReport(out io.Writer, report *hostcheck.Report, format string) error {
	if format == "json" {
		return writeJSON(out, report)
	}
	_, err := io.WriteString(out, report.Text(colourful(out)))
	return err
}
