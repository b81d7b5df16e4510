package ssh

import (
	"bytes"
	"context"
	"fmt"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// The output of a host is bounded twice: in bytes, while it arrives, and in its number of items,
// before it is parsed. A record takes as little as two bytes on the wire, and a hundred times as
// much in memory.

// whole marks a request whose output size only the host itself decides: more than OutputBytes
// ends the driver.
func (h *Host) whole(what string, r shell.Request) shell.Request {
	r.MaxStdout, r.Whole, r.Kind = int(h.budget.Limit(budget.OutputBytes)), what, budget.OutputBytes
	return r
}

// read is request for output that may be large. parse runs while no other large output is being
// parsed.
func (h *Host) read(ctx context.Context, op, object string, r shell.Request, parse func(stdout []byte) error) error {
	if r.Limit == 0 {
		r.Limit = limitOf(ctx)
	}
	var parsed error
	if err := h.shells.Read(ctx, r, func(res shell.Result) error {
		if res.Code != 0 {
			parsed = failure(op, object, res)
		} else {
			parsed = parse(res.Stdout)
		}
		return nil
	}); err != nil {
		return fmt.Errorf("%s %s: %w", op, object, err)
	}
	return parsed
}

// checkFields counts keys and values, which each end with a NUL, and checks the length of the
// longest line.
func checkFields(a *budget.Account, what string, data []byte) error {
	if err := a.Check(budget.Items, int64(bytes.Count(data, []byte{0})/2), what); err != nil {
		return err
	}
	longest := 0
	for rest := data; len(rest) > 0; {
		n := bytes.IndexAny(rest, "\n\x00")
		if n < 0 {
			n = len(rest) - 1
		}
		longest, rest = max(longest, n), rest[n+1:]
	}
	return a.Check(budget.LineBytes, int64(longest), "a line of "+what)
}

// mountWords is the highest average number of words of a mount: six fields, one or two optional
// ones, three more, and the options.
const mountWords = 32

// checkMounts counts the lines of mountinfo, and the words that they are split into.
func checkMounts(a *budget.Account, data []byte) error {
	const what = "the list of mounts"
	if err := spare(a, bytes.Count(data, []byte("\n")), what); err != nil {
		return err
	}
	words := bytes.Count(data, []byte(" ")) + bytes.Count(data, []byte(","))
	return spare(a, words/mountWords, "the words of "+what)
}

// checkEntries counts the records of a directory.
func checkEntries(a *budget.Account, data []byte) error {
	return spare(a, bytes.Count(data, []byte{0})/3, "the entries of a directory")
}

// spare refuses more than Items of what a pod may have created, without ending the driver.
func spare(a *budget.Account, n int, what string) error {
	if limit := a.Limit(budget.Items); int64(n) > limit {
		return fmt.Errorf("%w: %w", host.ErrTooLarge, &budget.ExceededError{Kind: budget.Items, Limit: limit, What: what})
	}
	return nil
}
