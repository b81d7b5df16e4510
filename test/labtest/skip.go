package labtest

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// SkipAll is what a TestMain exits with where its tests cannot run: none of them is
// run, and go test says "no tests to run" beside the package instead of a bare "ok".
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
