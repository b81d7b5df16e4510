package main

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bowline-k8s/bowline/lifeline/helper"
	"github.com/bowline-k8s/bowline/lifeline/helper/rules"
	"github.com/bowline-k8s/bowline/lifeline/mux"
	"github.com/bowline-k8s/bowline/lifeline/wire"
)

// run runs the helper until ctx ends, and then returns nil.
func run(ctx context.Context, o options) error {
	listener, err := listen(o.socket)
	if err != nil {
		return err
	}
	sessions := make(chan wire.Session)
	handle := func(ctx context.Context, s *mux.Session) {
		select {
		case sessions <- s:
			<-ctx.Done() // the server ends a session when this returns
		case <-ctx.Done():
		}
	}
	server, err := mux.NewServer(mux.Config{Flows: o.flows, Resume: o.resume}, listener, handle)
	if err != nil {
		listener.Close()
		return err
	}
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Run(running); ctx.Err() == nil {
			return fmt.Errorf("serve %s: %w", o.socket, err)
		}
		return nil
	})
	group.Go(func() error {
		return helper.Run(running, helper.Config{
			Sessions: func(ctx context.Context) (wire.Session, error) {
				select {
				case s := <-sessions:
					return s, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			},
			Rules:  func() (helper.Rules, error) { return rules.Open() },
			Listen: o.listen, Stale: o.resume, MaxFlows: o.flows,
		})
	})
	return group.Wait()
}

// listen listens at a unix socket that only root may connect to. It replaces the socket of an earlier process,
// but no file of another kind.
func listen(path string) (net.Listener, error) {
	switch info, err := os.Lstat(path); {
	case err == nil && info.Mode().Type() == fs.ModeSocket:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove the socket of an earlier process: %w", err)
		}
	case err == nil:
		return nil, fmt.Errorf("%s is there, and no socket", path)
	}
	// There is no other goroutine that makes a file now.
	defer syscall.Umask(syscall.Umask(0o177))
	return net.Listen("unix", path)
}
