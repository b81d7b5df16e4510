package labtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// enabled is the variable that allows tests to bring up a lab.
const enabled = "BOWLINE_E2E"

// Main is a TestMain whose tests share a lab: run gets the lab and returns the exit code of m.Run.
// Without BOWLINE_E2E=1 there is no lab, and NeedLab skips the tests. With BOWLINE_E2E_KEEP the lab
// outlives them.
func Main(m *testing.M, name string, hosts int, run func(*Lab) (int, error)) {
	if os.Getenv(enabled) != "1" {
		os.Exit(m.Run())
	}
	code, err := inLab(name, hosts, run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func inLab(name string, hosts int, run func(*Lab) (int, error)) (code int, err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", name)
	if err != nil {
		return 1, err
	}
	lab, err := Start(ctx, filepath.Join(dir, "lab"), hosts)
	if err != nil {
		return 1, errors.Join(err, os.RemoveAll(dir))
	}
	code, err = run(lab)
	if os.Getenv("BOWLINE_E2E_KEEP") != "" {
		fmt.Println("the lab stays in", lab.Dir)
		lab.Stay()
		return code, err
	}
	return code, errors.Join(err, lab.Down(ctx), os.RemoveAll(dir))
}

// NeedLab skips a test that uses the lab of Main if there is none. Each of these tests calls it
// first, so that each says why it did not run.
func NeedLab(t testing.TB) {
	t.Helper()
	if os.Getenv(enabled) != "1" {
		t.Skip("set " + enabled + "=1 to run the tests in a lab (root)")
	}
}
