package config

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestFlagsWin: of each field of the log, a flag that is given wins over the file, and the file over the
// default. The names are those of the flags that Kubernetes' components have.
func TestFlagsWin(t *testing.T) {
	c, err := Parse([]byte("apiVersion: bowline.io/v1alpha1\nkind: BowlineConfiguration\nkubeconfig: k\nhosts: [{}]\n" +
		"logging: {format: json, verbosity: 3, flushFrequency: 7s}\n"))
	testutil.Must(t, err)
	c.Logging.VModule = []LoggingOfFile{{"worker", 5}}
	flags := map[string]func(*logsapi.LoggingConfiguration) any{
		"logging-format":      func(l *logsapi.LoggingConfiguration) any { return l.Format },
		"v":                   func(l *logsapi.LoggingConfiguration) any { return l.Verbosity },
		"log-flush-frequency": func(l *logsapi.LoggingConfiguration) any { return l.FlushFrequency.Duration.Duration },
		"vmodule":             func(l *logsapi.LoggingConfiguration) any { return l.VModule },
	}
	fromFile := map[string]any{"logging-format": "json", "v": logsapi.VerbosityLevel(3), "log-flush-frequency": 7 * time.Second,
		"vmodule": logsapi.VModuleConfiguration{{FilePattern: "worker", Verbosity: 5}}}
	fromFlags := logsapi.NewLoggingConfiguration()
	fromFlags.Format, fromFlags.Verbosity, fromFlags.FlushFrequency.Duration.Duration = "text", 1, time.Second
	for given := range flags {
		out := *fromFlags
		c.Logging.Into(&out, func(flag string) bool { return flag == given })
		for flag, get := range flags {
			want := fromFile[flag]
			if flag == given {
				want = get(fromFlags)
			}
			if diff := cmp.Diff(want, get(&out)); diff != "" {
				t.Errorf("with the flag %s, %s: %s", given, flag, diff)
			}
		}
	}
	out := *fromFlags
	(*Logging)(nil).Into(&out, func(string) bool { return false })
	if diff := cmp.Diff(*fromFlags, out); diff != "" {
		t.Errorf("a file without logging: %s", diff)
	}
}

func TestLoggingDefaults(t *testing.T) {
	c, err := Parse([]byte("apiVersion: bowline.io/v1alpha1\nkind: BowlineConfiguration\nkubeconfig: k\nhosts: [{}]\nlogging: {verbosity: 2}\n"))
	testutil.Must(t, err)
	out, want := logsapi.NewLoggingConfiguration(), logsapi.NewLoggingConfiguration()
	want.Verbosity = 2
	c.Logging.Into(out, func(string) bool { return false })
	if diff := cmp.Diff(want, out); diff != "" {
		t.Error(diff)
	}
}
