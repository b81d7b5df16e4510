package ssh

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// compressDeadline is enough for a log of some gigabytes on a busy host.
const compressDeadline = 10 * time.Minute

// sizeBatch bounds the paths of one stat(1), so that there are never too many arguments.
const sizeBatch = 500

func (h *Host) FileSizes(ctx context.Context, paths []string) ([]int64, error) {
	return call(h, ctx, "FileSizes", shortDeadline, func(ctx context.Context) ([]int64, error) {
		sizes := make([]int64, 0, len(paths))
		for batch := range slices.Chunk(paths, sizeBatch) {
			part, err := h.sizeBatch(ctx, batch)
			if err != nil {
				return nil, err
			}
			sizes = append(sizes, part...)
		}
		return sizes, nil
	})
}

func (h *Host) sizeBatch(ctx context.Context, paths []string) ([]int64, error) {
	clean := make([]string, len(paths))
	for i, p := range paths {
		if err := machine.Absolute("stat", p); err != nil {
			return nil, err
		}
		clean[i] = path.Clean(p)
	}
	res, err := h.request(ctx, "stat", clean[0], shell.Request{Script: scriptFileSizes, Args: relative(clean), Inside: true, MaxStdout: 1 << 20})
	if err != nil {
		return nil, err
	}
	sizes, err := parseSizes(res.Stdout, len(clean))
	if err != nil {
		return nil, fmt.Errorf("stat %s: %w", clean[0], err)
	}
	return sizes, nil
}

// relative returns the deepest directory that all paths are in, without its last slash, and the
// paths below it. They are sent every few seconds, and most of each is the same.
func relative(paths []string) []string {
	dir := path.Dir(paths[0])
	in := func(p string) bool { return strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/") }
	for _, p := range paths {
		for !in(p) {
			dir = path.Dir(dir)
		}
	}
	dir = strings.TrimSuffix(dir, "/")
	args := []string{dir}
	for _, p := range paths {
		args = append(args, p[len(dir)+1:])
	}
	return args
}

// parseSizes parses the output of scripts/filesizes.sh for that many paths.
func parseSizes(data []byte, paths int) ([]int64, error) {
	kinds, rest, ended := strings.Cut(string(data), "\n")
	if !ended || len(kinds) != paths {
		return nil, fmt.Errorf("the host answered for %d files, not %d", len(kinds), paths)
	}
	files := strings.Count(kinds, "f")
	if n := strings.Count(rest, "\n"); n != files {
		return nil, fmt.Errorf("the host sent %d sizes for %d files", n, files)
	}
	sizes := make([]int64, paths)
	for i, kind := range []byte(kinds) {
		switch kind {
		case 'f':
			var line string
			line, rest, _ = strings.Cut(rest, "\n")
			size, err := strconv.ParseInt(line, 10, 64)
			if err != nil || size < 0 {
				return nil, fmt.Errorf("the host sent the size %.50q", line)
			}
			sizes[i] = size
		case 'o':
		case '-':
			sizes[i] = host.NoFile
		default:
			return nil, fmt.Errorf("the host sent the kind of file %q", kind)
		}
	}
	return sizes, nil
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

// Compress first waits for a running one; the time limit covers only its own work.
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
