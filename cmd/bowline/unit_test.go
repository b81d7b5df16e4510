package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestUnitKeepsTheMachinesMounts: a private mount namespace would hide every volume that Bowline
// mounts from the runtime; a device policy would hide the disks of local volumes.
func TestUnitKeepsTheMachinesMounts(t *testing.T) {
	const path = "../../deploy/systemd/bowline.service"
	text, err := os.ReadFile(path)
	testutil.Must(t, err)
	hides := regexp.MustCompile(`^(Protect\w+|Private\w+|ReadOnlyPaths|ReadWritePaths|InaccessiblePaths|ExecPaths|NoExecPaths|TemporaryFileSystem|Bind\w*Paths|Root\w+|Mount\w+|DynamicUser|User|DeviceAllow|DevicePolicy|RestrictNamespaces|RestrictSUIDSGID|ProcSubset)=`)
	sandboxed := false
	for line := range strings.Lines(string(text)) {
		if hides.MatchString(line) {
			t.Errorf("%s would take from Bowline what it needs", strings.TrimSpace(line))
		}
		sandboxed = sandboxed || strings.HasPrefix(line, "SystemCallFilter=")
	}
	if !sandboxed {
		t.Error("the unit has no filter of system calls")
	}
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd-analyze here")
	}
	// The program may not be installed here; every directive must be known.
	out, _ := exec.Command(tool, "verify", "--man=no", path).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "bowline.service") && !strings.Contains(line, "is not executable") {
			t.Error(strings.TrimSpace(line))
		}
	}
}
