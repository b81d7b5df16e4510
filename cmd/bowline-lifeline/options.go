package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/lifeline/helper"
)

// options are the flags.
type options struct {
	socket string
	listen []netip.Addr
	resume time.Duration
	flows  int
}

const mostFlows = 65536

// parse reads and validates the flags. For --help, it prints them.
func parse(args []string, out io.Writer) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("bowline-lifeline", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.socket, "socket", "", "unix `path` that Bowline dials")
	flags.DurationVar(&o.resume, "resume", time.Minute,
		"how long flows survive a cut of the link, and stale DNS answers are served")
	flags.IntVar(&o.flows, "max-flows", helper.MaxFlows, "most TCP connections at the same time")
	listen := flags.String("listen", "0.0.0.0,::",
		"`addresses` at which redirected flows arrive, one of each IP family")
	verbosity := flags.Int("v", 0, "verbosity of the log")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(out)
		flags.PrintDefaults()
		return o, err
	}
	var wrong []error
	if err != nil {
		wrong = append(wrong, err)
	}
	if flags.NArg() > 0 {
		wrong = append(wrong, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	if !filepath.IsAbs(o.socket) {
		wrong = append(wrong, fmt.Errorf("--socket %q is no absolute path", o.socket))
	}
	if o.resume <= 0 || o.resume > 10*time.Minute {
		wrong = append(wrong, fmt.Errorf("--resume %s is not between 0 and 10m", o.resume))
	}
	if o.flows < 1 || o.flows > mostFlows {
		wrong = append(wrong, fmt.Errorf("--max-flows %d is not between 1 and %d", o.flows, mostFlows))
	}
	for text := range strings.SplitSeq(*listen, ",") {
		address, err := netip.ParseAddr(text)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("--listen %s: %q is no IP address", *listen, text))
		}
		o.listen = append(o.listen, address)
	}
	if err := setVerbosity(*verbosity); err != nil {
		wrong = append(wrong, fmt.Errorf("-v %d is not between 0 and 10", *verbosity))
	}
	if len(wrong) > 0 {
		return o, oneSentence(wrong)
	}
	return o, nil
}

func setVerbosity(level int) error {
	if level < 0 || level > 10 {
		return errors.New("out of range")
	}
	logs := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(logs)
	return logs.Set("v", strconv.Itoa(level))
}

// oneSentence joins errors in one line.
func oneSentence(all []error) error {
	joined := all[0]
	for _, err := range all[1:] {
		joined = fmt.Errorf("%w; %w", joined, err)
	}
	return joined
}
