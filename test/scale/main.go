// Command scale measures one Bowline process that manages many remote hosts. Each is a bare lab
// host with a real sshd and a fake container runtime that lives in this program; the API server is
// real.
//
//	scale -bowline bin/bowline [-hosts 10,50,100,200] [-pods 30] [-out docs/bench-pool.md]
//	scale -bowline bin/bowline -scrapes -hosts 50 [-pods 30] [-out FILE]
//
// At each number of hosts it prints the process's idle use of resources, without and with pods on
// the hosts that came last, and so the cost of a host and of a pod. At the last number, some hosts
// then swallow everything, and the time to Ready of pods on the others is compared with the time
// before. With -scrapes it measures instead what metrics-server and Prometheus cost.
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
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	klog.LogToStderr(true)
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// options are the settings of one run.
type options struct {
	bowline string        // the program
	out     string        // Markdown file; empty: only standard output
	scrapes bool          // measure instead what scrapes of the last hosts cost
	hosts   []int         // growing
	pods    int           // on each host
	idle    time.Duration // of each idle measurement
	starts  int           // pods whose start is timed, with and without half-open hosts
	silent  int           // half-open hosts
	// services is the number of the cluster's Services, which concern no pod here.
	services int
}

func parse(args []string) (options, error) {
	var o options
	var hosts string
	f := flag.NewFlagSet("scale", flag.ContinueOnError)
	f.StringVar(&o.bowline, "bowline", "bin/bowline", "the program to measure")
	f.StringVar(&o.out, "out", "", "write the tables to this Markdown file too")
	f.BoolVar(&o.scrapes, "scrapes", false, "measure instead what scrapes of that many nodes cost, for docs/bench.md")
	f.StringVar(&hosts, "hosts", "10,50,100,200", "numbers of hosts to measure with, growing")
	f.IntVar(&o.pods, "pods", 30, "pods on each host")
	f.DurationVar(&o.idle, "idle", time.Minute, "time of each idle measurement")
	f.IntVar(&o.starts, "starts", 400, "pods whose start is timed, in each of four rounds")
	f.IntVar(&o.silent, "half-open", 10, "hosts that are made half-open")
	f.IntVar(&o.services, "services", 2000, "Services of the cluster")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	for _, text := range strings.Split(hosts, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || len(o.hosts) > 0 && n <= o.hosts[len(o.hosts)-1] {
			return o, fmt.Errorf("-hosts %q: want growing numbers above zero", hosts)
		}
		o.hosts = append(o.hosts, n)
	}
	switch {
	case o.pods < 1:
		return o, fmt.Errorf("-pods %d: want one at least", o.pods)
	case o.services < 0:
		return o, fmt.Errorf("-services %d: want none or more", o.services)
	case !o.scrapes && (o.silent < 0 || o.silent >= o.hosts[len(o.hosts)-1]):
		return o, fmt.Errorf("-half-open %d: want fewer than there are hosts", o.silent)
	}
	var err error
	o.bowline, err = filepath.Abs(o.bowline)
	return o, err
}

func run(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	c, err := begin(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.end()) }()
	for _, n := range o.hosts {
		s, err := c.step(ctx, n)
		if err != nil {
			return fmt.Errorf("%d hosts: %w", n, err)
		}
		c.steps = append(c.steps, s)
		fmt.Fprintf(os.Stderr, "%s\n", s)
	}
	if o.scrapes {
		return c.writeScrapes(ctx)
	}
	if o.silent > 0 {
		if err := c.compare(ctx); err != nil {
			return err
		}
	}
	var text bytes.Buffer
	missed := c.tables(&text)
	fmt.Print(text.String())
	if o.out != "" {
		if err := os.WriteFile(o.out, c.document(text.Bytes()), 0o644); err != nil {
			return err
		}
	}
	if missed {
		return errors.New("an aim is missed")
	}
	return nil
}

// writeScrapes measures scrapes, and writes their table.
func (c *rig) writeScrapes(ctx context.Context) error {
	all, err := c.measureScrapes(ctx)
	if err != nil {
		return err
	}
	text := c.scrapesDocument(all)
	fmt.Printf("%s", text)
	if c.out == "" {
		return nil
	}
	return os.WriteFile(c.out, text, 0o644)
}
