package ssh

import (
	"context"
	"fmt"
	"path"

	"github.com/bowline-k8s/bowline/host"
)

// Exit codes of scripts/bindsubpath.sh.
const (
	exitUnsafe = 33
	exitMake   = 34
)

// BindSubPath implements host.Mounts by one script. The script's comments describe how it pins the
// path that it mounts.
func (h *Host) BindSubPath(ctx context.Context, s host.SubPath) error {
	return run(h, ctx, "BindSubPath", mountDeadline, func(ctx context.Context) error {
		if err := s.Check(); err != nil {
			return err
		}
		target := path.Clean(s.Target)
		res, err := h.script(ctx, "bind a subPath of", s.Root, scriptBindSubPath, []string{path.Clean(s.Root), target, path.Dir(target), s.Path}, nil)
		switch {
		case err == nil:
			return nil
		case res.Code == exitUnsafe:
			return fmt.Errorf("%w: %w", host.ErrSubPathUnsafe, err)
		case res.Code == exitMake:
			return fmt.Errorf("%w: %w", host.ErrSubPathMake, err)
		}
		return err
	})
}
