package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// refuses checks that each command line fails with an error that contains the words, and prints
// nothing.
func refuses(t *testing.T, command func() *cobra.Command, cases map[string][]string) {
	t.Helper()
	for want, args := range cases {
		c := command()
		c.SilenceUsage, c.SilenceErrors = true, true
		var out bytes.Buffer
		c.SetOut(&out)
		c.SetArgs(args)
		if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error()+"\n"+hint.Of(err), want) || out.Len() > 0 {
			t.Errorf("%q: %v, not %q; printed %q", args, err, want, out.String())
		}
	}
}

func TestPrepareAndReleaseRefuse(t *testing.T) {
	refuses(t, hostPrepareCommand, map[string][]string{
		"give ENDPOINT":                     {},
		"unix:///path":                      {"run/c.sock"},
		"--pod-cidr \"10.0.0.1\"":           {"/run/c.sock", "--pod-cidr", "10.0.0.1"},
		"10.0.0.1/24":                       {"/run/c.sock", "--pod-cidr", "10.0.0.1/24"},
		"of the node --node-name":           {"/run/c.sock", "--kubeconfig", "x"},
		"do not combine it with --pod-cidr": {"/run/c.sock", "--kubeconfig", "x", "--node-name", "n", "--pod-cidr", "10.85.0.0/24"},
		"only for ssh://":                   {"/run/c.sock", "--proxy-jump", "x"},
		"--root-directory":                  {"/run/c.sock", "--root-directory", "x"},
	})
	refuses(t, hostReleaseCommand, map[string][]string{
		"give ENDPOINT":     {},
		"unix:///path":      {"tcp://x"},
		"must be positive":  {"/run/c.sock", "--drain-timeout", "0s"},
		"--node-name: only": {"/run/c.sock", "--node-name", "x"},
		"--root-directory":  {"/run/c.sock", "--root-directory", "x/"},
	})
	key := filepath.Join(t.TempDir(), "key")
	testutil.Must(t, os.WriteFile(key, nil, 0o600))
	testutil.Must(t, os.WriteFile(filepath.Join(filepath.Dir(key), "config.yaml"), nil, 0o600))
	with := func(args ...string) []string {
		return append([]string{"--ssh", "root@10.0.0.7", "--identity-file", key, "--node-name", "n", "--out", t.TempDir()}, args...)
	}
	refuses(t, configureCommand, map[string][]string{
		"give --node-name":            {},
		"--node-name":                 with("--node-name", "No"),
		"--identity-file":             with("--identity-file", key+".not"),
		"--host-key":                  with("--host-key", "x"),
		"--ssh \"root@\"":             with("--ssh", "root@"),
		"already has a configuration": with("--out", filepath.Dir(key)),
	})
}
