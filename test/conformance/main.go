// Command conformance runs the Kubernetes project's own e2e suite against one node of a lab:
// Bowline's, through the local socket or over SSH, or the real kubelet's, of the same Kubernetes
// and on the same container runtime: containerd, or CRI-O for the set "crio". The set "conformance"
// has two nodes: with -node ssh, Bowline manages one through the local socket and one over SSH.
// hack/conformance-build.sh builds the suite and its images.
//
//	conformance -node local|ssh|kubelet [-set NAME | -focus RE [-skip RE]] [-procs N]
//	conformance -list | -document
//
// A run prints a table of the specs that did not pass, and why. A run of a whole set also replaces
// its column of docs/conformance.json (not with $BOWLINE_LAB_RUNTIME: each set has its own
// runtime). docs/conformance.md is generated from that file, and there a spec of the set's
// committed list that did not run counts as failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// The files that keep the results of runs.
const (
	resultsFile  = "docs/conformance.json"
	documentFile = "docs/conformance.md"
)

// options are the settings of one run.
type options struct {
	node  string // a column: local, ssh, kubelet
	set   set    // runs if focus and skip are empty
	focus string
	skip  string
	procs int
	list  bool
	doc   bool
	keep  bool // leave the lab up
	out   string
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("conformance", flag.ContinueOnError)
	f.StringVar(&o.node, "node", "local", "whose node is tested: local, ssh or kubelet")
	name := f.String("set", sets[0].Name, "run the specs of this set: "+strings.Join(setNames(), ", "))
	f.StringVar(&o.focus, "focus", "", "run, instead of a set, the specs that this regular expression matches")
	f.StringVar(&o.skip, "skip", "", "but not those that this one matches")
	f.IntVar(&o.procs, "procs", 2*runtime.NumCPU(), "specs at a time")
	f.BoolVar(&o.list, "list", false, "write the list of each set's specs, and run nothing")
	f.BoolVar(&o.doc, "document", false, "write "+documentFile+" of the results that are there, and run nothing")
	f.BoolVar(&o.keep, "keep", false, "leave the lab up")
	f.StringVar(&o.out, "out", "bin/conformance-results", "directory of logs and reports")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if !slices.Contains(columns, o.node) {
		return o, fmt.Errorf("-node %q: want one of %v", o.node, columns)
	}
	i := slices.IndexFunc(sets, func(s set) bool { return s.Name == *name })
	if i < 0 {
		return o, fmt.Errorf("-set %q: want one of %v", *name, setNames())
	}
	o.set = sets[i]
	for _, re := range []string{o.focus, o.skip} {
		if _, err := regexp.Compile(re); err != nil {
			return o, err
		}
	}
	if o.procs < 1 {
		return o, fmt.Errorf("-procs %d: want one at least", o.procs)
	}
	var err error
	o.out, err = filepath.Abs(filepath.Join(o.out, o.node))
	return o, err
}

// whole reports whether the run is of a whole set, whose result is kept.
func (o options) whole() bool { return o.focus == "" && o.skip == "" }

// selection returns the suite's focus and skip.
func (o options) selection() (focus, skip string) {
	if o.whole() {
		return o.set.Focus, o.set.Skip
	}
	return o.focus, o.skip
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	o, err := parse(os.Args[1:])
	if err == nil {
		switch {
		case o.list:
			err = writeLists(ctx, o)
		case o.doc:
			err = keepDocument(resultsFile, documentFile)
		default:
			err = run(ctx, o)
		}
	}
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "conformance:", err)
		}
		os.Exit(1)
	}
}

// run tests one node.
func run(ctx context.Context, o options) error {
	began := time.Now()
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	var specs []string
	if o.whole() {
		var err error
		if specs, err = readList(o.set.file()); err != nil {
			return err
		}
	}
	c, err := bringUp(ctx, o)
	if err != nil {
		return err
	}
	report := filepath.Join(o.out, "report.json")
	failed := c.runSpecs(ctx, o, report)
	if err := errors.Join(failed, c.down(o)); err != nil {
		return err
	}
	got, err := readReport(report)
	if err != nil {
		return err
	}
	column := makeColumn(got, specs, began)
	if err := printColumn(os.Stdout, o.node, column); err != nil {
		return err
	}
	if o.whole() && os.Getenv("BOWLINE_LAB_RUNTIME") == "" {
		if err := keepColumn(resultsFile, documentFile, o.set.Name, o.node, column); err != nil {
			return err
		}
	}
	if n := len(column.notPassed()); n > 0 {
		return fmt.Errorf("%d of %d specs did not pass; the reports are in %s", n, len(column.Specs), o.out)
	}
	return nil
}
