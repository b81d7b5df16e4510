package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/enroll"
	"github.com/bowline-k8s/bowline/pod"
)

func topCommand() *cobra.Command {
	var way access
	var once bool
	var interval time.Duration
	c := &cobra.Command{
		Use:   "top",
		Short: "Hosts and their pods, live: links, round trips, restarts",
		Long: `Show the hosts of a cluster, and the pods on them: of Host objects, and of the
configuration files of Bowlines. On a terminal the table is kept up to date until you
interrupt it.`,
		Args: arguments(),
		RunE: func(c *cobra.Command, _ []string) error {
			if interval < time.Second {
				return fmt.Errorf("--interval %s: at least 1s", interval)
			}
			objects, client, err := way.clients()
			if err != nil {
				return err
			}
			look := func(ctx context.Context) (string, error) {
				v, err := enroll.Look(ctx, objects, client)
				if err != nil {
					return "", err
				}
				return v.Text(time.Now()), nil
			}
			out := c.OutOrStdout()
			if once || !isTerminal(out) {
				text, err := look(c.Context())
				if err == nil {
					_, err = io.WriteString(out, text)
				}
				return err
			}
			return live(c.Context(), out, interval, func() (int, int) { return windowOf(out) }, look)
		},
	}
	way.register(c)
	c.Flags().BoolVar(&once, "once", false, "show it once (default where the output is no terminal)")
	c.Flags().DurationVar(&interval, "interval", 2*time.Second, "the time between two looks")
	return c
}

// What a terminal is told: the other screen and back, and where to write.
const (
	screenOn  = "\x1b[?1049h\x1b[?25l"
	screenOff = "\x1b[?25h\x1b[?1049l"
	screenTop = "\x1b[H"
	lineEnd   = "\x1b[K"
	restOff   = "\x1b[J"
)

// live shows what look says, again and again, until ctx ends. A look that fails is told
// in the first line, above what was seen last; only the first one ends it.
func live(ctx context.Context, out io.Writer, interval time.Duration, window func() (rows, columns int), look func(context.Context) (string, error)) error {
	text, err := look(ctx)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, screenOn); err != nil {
		return err
	}
	defer io.WriteString(out, screenOff)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	at := time.Now().Format(time.TimeOnly)
	head := at
	for {
		var clipped bytes.Buffer
		rows, columns := window()
		if err := enroll.Clip(&clipped, head+"\n\n"+text, rows, columns); err != nil {
			return err
		}
		frame := screenTop + string(bytes.ReplaceAll(clipped.Bytes(), []byte("\n"), []byte(lineEnd+"\n"))) + lineEnd + restOff
		if _, err := io.WriteString(out, frame); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := look(ctx)
		switch {
		case errors.Is(err, context.Canceled) && ctx.Err() != nil:
			return nil
		case err != nil:
			head = fmt.Sprintf("as of %s: %s", at, pod.Printable(err.Error()))
		default:
			text, at = now, time.Now().Format(time.TimeOnly)
			head = at
		}
	}
}
