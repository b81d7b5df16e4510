package connect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/bowline-k8s/bowline/host"
)

// RealPath resolves the symbolic links in a path on the host, as far as the path exists. The
// kernel's mount table has only real paths, and two names of one socket or directory must be
// recognized as one.
func RealPath(ctx context.Context, machine interface {
	Stat(ctx context.Context, path string) (host.FileInfo, error)
}, p string) (string, error) {
	const maxLinks = 40 // the kernel's limit
	done, rest := "/", elements(p)
	for links := 0; len(rest) > 0; {
		next := path.Join(done, rest[0])
		info, err := machine.Stat(ctx, next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return path.Join(done, path.Join(rest...)), nil
		case err != nil:
			return "", fmt.Errorf("follow %s: %w", p, err)
		case info.Mode&fs.ModeSymlink == 0:
			done, rest = next, rest[1:]
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("follow %s: more than %d links", p, maxLinks)
		}
		if path.IsAbs(info.Target) {
			done = "/"
		}
		rest = append(elements(info.Target), rest[1:]...)
	}
	return done, nil
}

func elements(p string) []string {
	return strings.FieldsFunc(p, func(r rune) bool { return r == '/' })
}
