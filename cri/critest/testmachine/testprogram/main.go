// Command testprogram is the program of the test images: package program in a real process.
package main

import (
	"context"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/bowline-k8s/bowline/cri/fake/program"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM)
	term := make(chan struct{}, 8)
	go func() {
		for range signals {
			term <- struct{}{}
		}
	}()
	os.Exit(program.Run(context.Background(), program.World{
		Args: os.Args[1:], Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Term: term,
		Path: func(p string) string { return p },
		Listen: func(ctx context.Context, port int) (net.Listener, error) {
			var c net.ListenConfig
			return c.Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(port)))
		},
	}))
}
