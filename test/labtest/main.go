package labtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Main is a TestMain whose tests share a lab: run gets the lab and returns the exit code of m.Run.
// The tests need BOWLINE_E2E=1. With BOWLINE_E2E_KEEP the lab outlives them.
func Main(m *testing.M, name string, hosts int, run func(*Lab) (int, error)) {
	if os.Getenv("BOWLINE_E2E") != "1" {
		os.Exit(SkipAll(m, "set BOWLINE_E2E=1 to run these tests in a lab (root)"))
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

// SkipAll returns the exit code for a TestMain whose tests cannot run. It runs none of them, so
// that go test prints "no tests to run" for the package instead of a bare "ok".
func SkipAll(m *testing.M, why string) int {
	flag.Parse()
	if list := flag.Lookup("test.list"); list != nil && list.Value.String() != "" {
		return m.Run() // names only
	}
	for _, name := range []string{"test.run", "test.bench", "test.fuzz"} {
		value := "" // benchmarks and fuzzing are off
		if name == "test.run" {
			value = "^$"
		}
		if err := flag.Set(name, value); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	fmt.Println("skipped: " + why)
	return m.Run()
}
