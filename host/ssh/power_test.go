package ssh_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Programs of a host whose disk loses the content of a file that was renamed before it was
// synced. They log what is synced.
const (
	losingMv = `for from; do case $from in -*) ;; *) break ;; esac; done
grep -qxF "sync $from" "$LOG" || : >|"$from"
echo mv >>"$LOG"
exec /bin/mv "$@"
`
	notingSync = `[ "$1" != -- ] || shift
for f; do echo "sync $f" >>"$LOG"; done
[ -z "$REFUSE" ] || [ ! -d "$1" ] || { echo "sync: error syncing '$1': Invalid argument" >&2; exit 1; }
exec /bin/sync "$@"
`
	// ancientSync takes no arguments.
	ancientSync = `for f; do [ "$f" = -- ] || echo "sync $f" >>"$LOG"; done
[ $# -eq 0 ] || echo "sync: ignoring all arguments" >&2
`
)

// TestFilesSurvivePowerCut: over SSH one request syncs a record, renames it, and syncs its
// directory.
func TestFilesSurvivePowerCut(t *testing.T) {
	write := map[string]func(context.Context, *ssh.Host, string) error{
		"WriteFile": func(ctx context.Context, h *ssh.Host, p string) error {
			return h.WriteFile(ctx, p, []byte("content"), 0o600)
		},
		"Make": func(ctx context.Context, h *ssh.Host, p string) error {
			_, err := h.Make(ctx, host.Entry{Path: p, Mode: 0o600, Data: []byte("content"), Synced: true},
				host.Entry{Path: filepath.Dir(p) + "/dir", Mode: fs.ModeDir | 0o750})
			return err
		},
	}
	for how, f := range write {
		for name, sync := range map[string]string{"today": notingSync, "refuses directories": "REFUSE=yes\n" + notingSync, "ancient": ancientSync} {
			t.Run(how+", "+name, func(t *testing.T) {
				bin, dir := t.TempDir(), t.TempDir()
				log := filepath.Join(t.TempDir(), "log")
				for program, text := range map[string]string{"mv": losingMv, "sync": sync} {
					testutil.Must(t, os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/sh\nLOG="+log+"\n"+text), 0o755))
				}
				testutil.Must(t, os.WriteFile(log, nil, 0o644))
				h, err := ssh.New(t.Context(), ssh.Config{Name: "power", Transport: &shtest.Transport{}, Path: bin + ":/usr/sbin:/usr/bin:/sbin:/bin"})
				testutil.Must(t, err)
				closeHost(t, h)
				testutil.Must(t, os.WriteFile(log, nil, 0o644))
				p := filepath.Join(dir, "a b", "c", "record")
				testutil.Must(t, f(t.Context(), h, p))
				if got, err := os.ReadFile(p); err != nil || string(got) != "content" {
					t.Errorf("after the power cut it has %q, %v", got, err)
				}
				did := testutil.ReadFile(t, log)
				_, after, named := strings.Cut(string(did), "mv\n")
				for _, d := range []string{dir, dir + "/a b", dir + "/a b/c"} {
					if !named || !strings.Contains("\n"+after, "\nsync "+d+"\n") {
						t.Errorf("the names in %s are not synced:\n%s", d, did)
					}
				}
			})
		}
	}
}
