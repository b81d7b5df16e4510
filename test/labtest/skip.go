package labtest

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

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
