package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/grpclog"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pool"
)

// asProgram is set in the environment of this test program to make it the program.
const asProgram = "BOWLINE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}
	root := rootCommand("bowline")
	root.AddCommand(&cobra.Command{Use: "noise", RunE: func(c *cobra.Command, _ []string) error { return noise(c.Context()) }})
	root.SetArgs(os.Args[1:])
	err := root.ExecuteContext(context.Background())
	os.Exit(report(os.Stderr, "bowline", wantsJSON(root, os.Args[1:]), err))
}

// noise makes every kind of line that the libraries of the program write, and a panic of a driver.
func noise(ctx context.Context) error {
	klog.Infof("klog says\nin %d lines", 2)
	klog.ErrorS(errors.New("first\nsecond"), "klog fails", "key", "a\nb")
	klog.V(5).InfoS("klog whispers")
	rest.WarningLogger{}.HandleWarningHeader(299, "agent", "the API server warns")
	utilruntime.HandleErrorWithContext(ctx, errors.New("an informer's error"), "client-go handles an error")
	log.Print("the log of the standard library")
	slog.Error("slog's error", "key", "a\nb")
	grpclog.Error("gRPC's error")
	grpclog.Infof("gRPC's line %d\n", 1)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("in a handler") }))
	defer server.Close()
	if resp, err := http.Get(server.URL); err == nil {
		resp.Body.Close()
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	hosts := pool.New(func(context.Context, *config.Host) error { panic("in a\ndriver") }, pool.Options{})
	hosts.Set(map[string]*config.Host{"box": {Name: "box", NodeName: "box", Endpoint: "unix:///run/none.sock"}})
	done := make(chan error)
	go func() { done <- hosts.Run(ctx) }()
	for changed := hosts.Changed(); hosts.States()["box"].Phase != pool.Quarantined; changed = hosts.Changed() {
		<-changed
	}
	cancel()
	return errors.Join(<-done, hint.Add(errors.New("it ends\nbadly"), "do it again:\nbowline run"), errors.New("and this"))
}

// program runs the program, and returns the lines of its standard error.
func program(t *testing.T, args ...string) (lines []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err == nil {
		t.Errorf("%q succeeded", args)
	}
	scan := bufio.NewScanner(&stderr)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		lines = append(lines, scan.Text())
	}
	return lines
}

// TestStderrInJSON: with --logging-format=json, each line on standard error is one JSON object, whatever
// writes it, so that a collector of logs loses nothing.
func TestStderrInJSON(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.yaml")
	invalid := filepath.Join(t.TempDir(), "invalid.yaml")
	testutil.Must(t, os.WriteFile(invalid, []byte("apiVersion: bowline.io/v1alpha1\nkind: BowlineConfiguration\nhosts:\n- {name: box, endpoint: nowhere}\n"), 0o600))
	configured := filepath.Join(t.TempDir(), "json.yaml")
	testutil.Must(t, os.WriteFile(configured, []byte("apiVersion: bowline.io/v1alpha1\nkind: BowlineConfiguration\nlogging: {format: json}\nhosts:\n"+
		"- {name: box, endpoint: unix:///run/none.sock, kubeconfig: /none}\n"), 0o600))
	for name, c := range map[string]struct {
		args []string
		want []string // in some line
	}{
		"no configuration":      {[]string{"run", "--config", missing, "--logging-format=json"}, []string{missing}},
		"a wrong configuration": {[]string{"run", "--config", invalid, "--logging-format", "json"}, []string{"nowhere"}},
		"by the configuration":  {[]string{"run", "--config", configured, "--health-address", "nowhere"}, []string{"nowhere"}},
		"no such flag":          {[]string{"run", "--logging-format=json", "--no-such-flag"}, []string{"unknown flag: --no-such-flag", "bowline run --help"}},
		"before the format":     {[]string{"run", "--no-such-flag", "--logging-format=json"}, []string{"unknown flag: --no-such-flag"}},
		"a wrong verbosity":     {[]string{"run", "-v", "loud", "--logging-format=json"}, []string{"loud"}},
		"text only":             {[]string{"version", "--vmodule=x=1", "--logging-format=json"}, []string{"vmodule"}},
		"no such command":       {[]string{"--logging-format=json", "rnu"}, []string{"unknown command", "Did you mean this?"}},
		"everything that logs": {[]string{"noise", "-v=5", "--logging-format=json"}, []string{
			"klog says", "klog fails", "klog whispers", "the API server warns", "client-go handles an error", "the log of the standard library", "slog's error",
			"gRPC's error", "gRPC's line 1", "http: panic serving", "Quarantined the host, will retry", "Recovered the driver's panic", `"err":"it ends\nbadly"`, `"hint":"do it again:\nbowline run"`, "and this"}},
	} {
		t.Run(name, func(t *testing.T) {
			lines := program(t, c.args...)
			for _, line := range lines {
				var object map[string]any
				if err := json.Unmarshal([]byte(line), &object); err != nil || object["msg"] == nil || object["ts"] == nil {
					t.Errorf("%v: %s", err, line)
				}
			}
			for _, want := range c.want {
				if !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, want) }) {
					t.Errorf("no line has %q:\n%s", want, strings.Join(lines, "\n"))
				}
			}
		})
	}
}

// TestStderrAsText: without the flag, the user gets sentences.
func TestStderrAsText(t *testing.T) {
	for _, args := range [][]string{{"run", "--no-such-flag"}, {"run", "--logging-format=text", "--no-such-flag"}, {"run", "--no-such-flag", "--", "--logging-format=json"}} {
		if got, want := program(t, args...), "bowline: unknown flag: --no-such-flag"; len(got) == 0 || got[0] != want {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
}

func TestWantsJSON(t *testing.T) {
	for line, want := range map[string]bool{
		"run --logging-format=json": true, "run --logging-format json": true, "--logging-format=json run": true, "run": false,
		"run --logging-format=text": false, "run --logging-format": false, "run -- --logging-format=json": false,
		"run --logging-format=json --logging-format=text": false, "run --config --logging-format=json": true,
	} {
		if got := wantsJSON(rootCommand("bowline"), strings.Fields(line)); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}
