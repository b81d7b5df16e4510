package main

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/hostadmin"
	"github.com/bowline-k8s/bowline/hostcheck"
)

// errSaid makes the program exit with status 1 and no message: all has been printed.
var errSaid = errors.New("said")

func hostCheckCommand() *cobra.Command {
	var flags hostFlags
	var way access
	var output, namespace, exposure string
	c := &cobra.Command{
		Use:   "check ENDPOINT|NAME",
		Short: "Check whether a machine can be a node, without changing it",
		Long: `Check a host before it becomes a node: the connection, privileges, the container
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
					return nil, errors.New("--kubelet-exposure: a Host says it itself")
				}
				if given := sshFlags(c); len(given) > 0 {
					return nil, fmt.Errorf("%s: only for ssh:// endpoints; a Host object has its own", strings.Join(given, ", "))
				}
				return way.check(c.Context(), namespace, args[0], flags.rootDir)
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
				return errSaid
			}
			return nil
		},
	}
	flags.register(c)
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
	for _, name := range []string{"identity-file", "certificate-file", "passphrase-file", "agent-socket", "known-hosts", "host-key", "ssh-config", "jump", "jump-host-key"} {
		if c.Flags().Changed(name) {
			given = append(given, "--"+name)
		}
	}
	return given
}

// checkConfig returns the check of the host that an endpoint names, without its root directory.
func checkConfig(raw string, o endpoint.Options, certificate string, given []string) (*hostcheck.Config, error) {
	cfg := &hostcheck.Config{Endpoint: raw}
	if !strings.HasPrefix(raw, "ssh://") {
		cfg.Socket = strings.TrimPrefix(raw, "unix://")
		if !path.IsAbs(cfg.Socket) || path.Clean(cfg.Socket) != cfg.Socket {
			return nil, fmt.Errorf("endpoint %q: write unix:///path/of/the.sock, or ssh://user@host/path/of/the.sock", raw)
		}
		cfg.Endpoint = "unix://" + cfg.Socket
		if len(given) > 0 {
			return nil, fmt.Errorf("%s: only for ssh:// endpoints", strings.Join(given, ", "))
		}
		return cfg, nil
	}
	for _, line := range o.HostKeys {
		if err := endpoint.CheckHostKey(line); err != nil {
			return nil, fmt.Errorf("--host-key: %w", err)
		}
	}
	target, err := endpoint.Resolve(raw, o)
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	if certificate != "" {
		target.CertificateFiles = append(target.CertificateFiles, certificate)
	}
	cfg.Target, cfg.Socket = target, target.Socket
	return cfg, nil
}

func printReport(out io.Writer, report *hostcheck.Report, format string) error {
	if format == "json" {
		return writeJSON(out, report)
	}
	_, err := io.WriteString(out, report.Text(colourful(out)))
	return err
}
