package ssh

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// compressDeadline is for a log of some gigabytes on a busy machine.
const compressDeadline = 10 * time.Minute

// statBatch bounds what one stat(1) is given, so that its arguments are never too many.
const statBatch = 500

func (h *Host) StatAll(ctx context.Context, paths []string) ([]host.FileInfo, error) {
	return call(h, ctx, "StatAll", shortDeadline, func(ctx context.Context) ([]host.FileInfo, error) {
		infos := make([]host.FileInfo, len(paths))
		for from := 0; from < len(paths); from += statBatch {
			to := min(from+statBatch, len(paths))
			if err := h.statBatch(ctx, paths[from:to], infos[from:to]); err != nil {
				return nil, err
			}
		}
		return infos, nil
	})
}

func (h *Host) statBatch(ctx context.Context, paths []string, into []host.FileInfo) error {
	clean := make([]string, len(paths))
	for i, p := range paths {
		if err := machine.Absolute("stat", p); err != nil {
			return err
		}
		clean[i] = path.Clean(p)
	}
	res, err := h.request(ctx, "stat", clean[0], shell.Request{Script: scriptStatAll, Args: clean, Inside: true, MaxStdout: 1 << 20})
	if err != nil {
		return err
	}
	return parseStates(res.Stdout, clean, into)
}

// parseStates reads what scripts/statall.sh prints: the numbers of the paths that are
// there, then a state for each of them.
func parseStates(data []byte, clean []string, into []host.FileInfo) error {
	if len(data) == 0 {
		return nil
	}
	first, rest, _ := strings.Cut(strings.TrimSuffix(string(data), "\n"), "\n")
	// A number of a path, and a blank, take up to 5 bytes.
	if n := strings.Count(rest, "\n"); n >= len(clean) || len(first) > 5*len(clean) {
		return fmt.Errorf("stat %s: the machine told of %d files, and was asked for %d", clean[0], n+1, len(clean))
	}
	numbers, states := strings.Fields(first), strings.Split(rest, "\n")
	if len(numbers) != len(states) {
		return fmt.Errorf("stat %s: the machine told of %d files and %d states", clean[0], len(numbers), len(states))
	}
	for i, word := range numbers {
		n, err := strconv.Atoi(word)
		if err != nil || n < 0 || n >= len(into) {
			return fmt.Errorf("stat %s: the machine told of a file %.50q", clean[0], word)
		}
		if into[n], err = parseState(states[i]); err != nil {
			return fmt.Errorf("stat %s: %w", clean[n], err)
		}
		into[n].Name = path.Base(clean[n])
	}
	return nil
}

func (h *Host) Rename(ctx context.Context, from, to string) error {
	return run(h, ctx, "Rename", shortDeadline, func(ctx context.Context) error {
		for _, p := range []string{from, to} {
			if err := machine.Absolute("rename", p); err != nil {
				return err
			}
		}
		_, err := h.script(ctx, "rename", from, scriptRename, []string{path.Clean(from), path.Clean(to)}, nil)
		return err
	})
}

// Compress waits for the one before it: the time limit is for its own work.
func (h *Host) Compress(ctx context.Context, p string) error {
	select {
	case h.packs <- struct{}{}:
		defer func() { <-h.packs }()
	case <-ctx.Done():
		return fmt.Errorf("compress %s, after another file: %w", p, ctx.Err())
	}
	return run(h, ctx, "Compress", compressDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("compress", p); err != nil {
			return err
		}
		_, err := h.script(ctx, "compress", p, scriptCompress, []string{path.Clean(p), path.Clean(p) + "." + newSuffix() + ".tmp"}, nil)
		return err
	})
}
