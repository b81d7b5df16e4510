package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// recordCommand makes this program a proxy in front of containerd's socket, inside the host. The
// proxy writes every call that it forwards to its standard output.
const recordCommand = "_record"

const (
	containerdSocket = "/run/containerd/containerd.sock"
	recordSocket     = "/run/bowline-bench.sock"
	messageLimit     = 16 << 20 // the CRI's
)

// recorded is one successful CRI call, with the bytes that were sent.
type recorded struct {
	Method         string // "/runtime.v1.RuntimeService/RunPodSandbox"
	At             time.Time
	Request, Reply []byte
}

// rawCodec passes messages through unchanged.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// dialRaw connects to a gRPC socket for raw messages.
func dialRaw(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}), grpc.MaxCallRecvMsgSize(messageLimit)))
}

// runRecorder is the proxy. It serves until its standard input ends.
func runRecorder(context.Context, []string) error {
	runtime, err := dialRaw(containerdSocket)
	if err != nil {
		return err
	}
	defer runtime.Close()
	listener, err := net.Listen("unix", recordSocket)
	if err != nil {
		return err
	}
	p := &proxy{runtime: runtime, out: json.NewEncoder(os.Stdout)}
	server := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.MaxRecvMsgSize(messageLimit), grpc.UnknownServiceHandler(p.pass))
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // however the input ends, so does the recording
		server.Stop()
	}()
	p.write(recorded{}) // an empty entry signals that the proxy listens
	return server.Serve(listener)
}

type proxy struct {
	runtime *grpc.ClientConn

	mu  sync.Mutex
	out *json.Encoder
}

func (p *proxy) write(c recorded) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.out.Encode(c) // if the write fails, the call is missing from the parent's recording
}

// pass forwards one call in both directions until both have ended.
func (p *proxy) pass(_ any, from grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(from)
	ctx := from.Context()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	c := recorded{Method: method, At: time.Now()}
	to, err := p.runtime.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() { sent <- forward(from, to, &c.Request, to.CloseSend) }()
	err = forward(to, from, &c.Reply, func() error { return nil })
	if err == nil && strings.HasPrefix(method, "/runtime.v1.RuntimeService/") {
		if err = <-sent; err == nil {
			p.write(c)
		}
	}
	return err
}

type messages interface {
	RecvMsg(any) error
	SendMsg(any) error
}

// forward copies messages until there are no more, keeps the first, and then ends the other side's
// stream.
func forward(from, to messages, first *[]byte, end func() error) error {
	for n := 0; ; n++ {
		var m []byte
		switch err := from.RecvMsg(&m); {
		case errors.Is(err, io.EOF):
			return end()
		case err != nil:
			return err
		}
		if n == 0 {
			*first = m
		}
		if err := to.SendMsg(&m); err != nil {
			return err
		}
	}
}

// record lets Bowline start and end one wave through the proxy. It keeps Bowline's requests to the
// runtime, and how often it wrote to the API server.
func (b *bench) record(ctx context.Context) (err error) {
	client, err := b.fresh(ctx)
	if err != nil {
		return err
	}
	cmd := b.lab.Exec(ctx, theHost, b.self, recordCommand)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 2*messageLimit)
	if !lines.Scan() {
		return errors.Join(errors.New("the recorder did not start"), lines.Err(), in.Close(), cmd.Wait())
	}
	var calls []recorded
	read := make(chan error, 1)
	go func() {
		for lines.Scan() {
			var c recorded
			if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
				read <- err
				return
			}
			calls = append(calls, c)
		}
		read <- lines.Err()
	}()
	err = b.recordWave(ctx, wave{client: client, n: b.pods})
	err = errors.Join(err, in.Close(), <-read, cmd.Wait())
	if err != nil {
		return fmt.Errorf("record a wave: %w", err)
	}
	b.tape, err = newTape(calls, b.pods)
	return err
}

func (b *bench) recordWave(ctx context.Context, w wave) (err error) {
	_, stop, err := b.startBowline(ctx, b.bowline, recordSocket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := nodeReady(ctx, w.client); err != nil {
		return err
	}
	waitForIdle(ctx)
	before, err := countWrites(ctx, w.client)
	if err != nil {
		return err
	}
	if _, err := w.up(ctx); err != nil {
		return err
	}
	waitForIdle(ctx)
	up, err := countWrites(ctx, w.client)
	if err != nil {
		return err
	}
	if _, err := w.down(ctx); err != nil {
		return err
	}
	waitForIdle(ctx)
	down, err := countWrites(ctx, w.client)
	b.wroteUp, b.wroteDown = up.minus(before).per(b.pods), down.minus(up).per(b.pods)
	return err
}
