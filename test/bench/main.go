// Command bench measures Bowline, the kubelet of the lab's Kubernetes and the bare CRI, and prints
// one table. In each repetition the systems run in turn, each on a fresh lab host with the images
// present, so that other load on the machine affects all of them alike.
//
//	bench -bowline bin/bowline [-out docs/bench.md]
//	bench -bowline bin/bowline -only api [-out docs/bench-api.md]
//	bench -bowline bin/bowline -runtime crio [-out docs/bench-crio.md]
//
// Environment: BOWLINE_BENCH_RUNS (5), BOWLINE_BENCH_IDLE (1m, which covers one sweep of each kind;
// 0 omits the idle rows and the idle link), BOWLINE_BENCH_PODS (50), BOWLINE_BENCH_LAB (the directory of
// a lab to use and keep; without it the program makes and removes its own) and BOWLINE_BENCH_BASE (an
// earlier build of Bowline, which is measured in turn with this one, and compared in a table of its own).
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	klog.LogToStderr(true)
	run := run
	if len(os.Args) > 1 && os.Args[1] == bareCommand {
		run = runBare
	} else if len(os.Args) > 1 && os.Args[1] == recordCommand {
		run = runRecorder
	}
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the settings of one run.
type options struct {
	bowline string        // the program
	base    string        // an earlier one to compare it with; empty: none
	out     string        // Markdown file; empty: only standard output
	with    string        // Markdown that the file ends with
	labDir  string        // empty: make one
	only    string        // one system only, for work on it
	runtime string        // of the host: containerd or crio
	pods    int           // per wave
	runs    int           // repetitions
	idle    time.Duration // of each idle measurement
}

// onlyRemote measures only the local socket and SSH.
const onlyRemote = "remote"

func parse(args []string) (options, error) {
	o := options{pods: 50, runs: 5, idle: time.Minute, labDir: os.Getenv("BOWLINE_BENCH_LAB")}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&o.bowline, "bowline", "bin/bowline", "the program to measure")
	f.StringVar(&o.out, "out", "", "write the table to this Markdown file too")
	with := f.String("with", "", "end that file with the text of this one, such as what scale -scrapes wrote")
	f.StringVar(&o.only, "only", "", "measure one system alone: bowline, kubelet, bare, ssh, ssh10, ssh50; or remote: bowline and the rows over SSH; or api: what is asked of the API server")
	f.StringVar(&o.runtime, "runtime", runtimeContainerd, "the container runtime of the host: containerd or crio; with crio the bare CRI is not measured")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if *with != "" {
		text, err := os.ReadFile(*with)
		if err != nil {
			return o, err
		}
		o.with = string(text)
	}
	if o.runtime != runtimeContainerd && o.runtime != runtimeCRIO {
		return o, fmt.Errorf("-runtime %q: want %s or %s", o.runtime, runtimeContainerd, runtimeCRIO)
	}
	if o.runtime == runtimeCRIO && o.only == sysBare {
		return o, errors.New("-only bare: the requests of the bare CRI are for containerd")
	}
	for name, to := range map[string]*int{"BOWLINE_BENCH_RUNS": &o.runs, "BOWLINE_BENCH_PODS": &o.pods} {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 {
				return o, fmt.Errorf("%s=%q: want a number above zero", name, text)
			}
			*to = n
		}
	}
	if text := os.Getenv("BOWLINE_BENCH_IDLE"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			if d, err = time.ParseDuration(text + "s"); err != nil {
				return o, fmt.Errorf("BOWLINE_BENCH_IDLE=%q: want a duration", text)
			}
		}
		o.idle = d
	}
	var err error
	if o.base = os.Getenv("BOWLINE_BENCH_BASE"); o.base != "" {
		if o.base, err = filepath.Abs(o.base); err != nil {
			return o, err
		}
	}
	o.bowline, err = filepath.Abs(o.bowline)
	return o, err
}

func run(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	b := &bench{options: o, results: map[string][]result{}, earlier: map[string][]result{}}
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if o.base != "" {
		if b.baseVersion, err = programVersion(ctx, o.base); err != nil {
			return err
		}
	}
	if b.lab, err = openLab(ctx, o.labDir, o.runtime); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.lab.close()) }()
	if o.only == onlyAPI {
		return b.api(ctx)
	}
	if b.wants(sysBare) {
		if err := b.record(ctx); err != nil {
			return err
		}
	}
	for i := range o.runs {
		if err := b.repetition(ctx, i); err != nil {
			return err
		}
	}
	var text bytes.Buffer
	writeTable(&text, b)
	fmt.Print(text.String())
	if o.out == "" {
		return nil
	}
	return os.WriteFile(o.out, document(b, text.Bytes()), 0o644)
}
