package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/hostcheck"
)

// check runs the command and returns what it printed.
func check(t *testing.T, args ...string) (string, error) {
	t.Helper()
	c := hostCheckCommand()
	c.SilenceUsage, c.SilenceErrors = true, true
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetArgs(args)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func TestHostCheckRefuses(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "give ENDPOINT or NAME"},
		{[]string{"run/c.sock"}, "unix:///path"},
		{[]string{"unix://run/c.sock"}, "unix:///path"},
		{[]string{"tcp://10.0.0.7:1"}, "unix:///path"},
		{[]string{"/run/../c.sock"}, "unix:///path"},
		{[]string{"/run/c.sock", "--host-key", "x", "--proxy-jump", "y"}, "--host-key, --proxy-jump: only for ssh://"},
		{[]string{"ssh://root@10.0.0.7"}, "endpoint: "},
		{[]string{"ssh://root@10.0.0.7/run/c.sock", "--host-key", "x"}, "--host-key: "},
		{[]string{"/run/c.sock", "-o", "yaml"}, "text or json"},
		{[]string{"/run/c.sock", "--root-directory", "kubelet"}, "--root-directory"},
	} {
		out, err := check(t, c.args...)
		if err == nil || errors.Is(err, errReported) || !strings.Contains(err.Error()+"\n"+hint.Of(err), c.want) || out != "" {
			t.Errorf("%v: %q, %v", c.args, out, err)
		}
	}
}

func TestHostCheck(t *testing.T) {
	rt := fake.Run(t, fake.Config{})
	out, err := check(t, rt.Socket, "-o", "json", "--root-directory", t.TempDir())
	var r hostcheck.Report
	if bad := json.Unmarshal([]byte(out), &r); bad != nil {
		t.Fatalf("%v: %s", bad, out)
	}
	if r.Endpoint != "unix://"+rt.Socket || len(r.Lines) == 0 || r.Fit != (err == nil) || err != nil && !errors.Is(err, errReported) {
		t.Errorf("got %s, %v", out, err)
	}
	out, err = check(t, rt.Socket+".not")
	if !errors.Is(err, errReported) || !strings.Contains(out, "there is no socket") || strings.Contains(out, "\033") {
		t.Errorf("got %s, %v", out, err)
	}
}
