package hostadmin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/bowline-k8s/bowline/pod"
)

// Terminal escape sequences.
const (
	screenOn  = "\x1b[?1049h\x1b[?25l"
	screenOff = "\x1b[?25h\x1b[?1049l"
	screenTop = "\x1b[H"
	lineEnd   = "\x1b[K"
	restOff   = "\x1b[J"
)

// Live shows the result of look repeatedly until ctx ends. If the first look fails, Live fails. A
// later failure is shown in the first line, above the last result.
func Live(ctx context.Context, out io.Writer, interval time.Duration, window func() (rows, columns int), look func(context.Context) (string, error)) error {
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
		if err := Clip(&clipped, head+"\n\n"+text, rows, columns); err != nil {
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
