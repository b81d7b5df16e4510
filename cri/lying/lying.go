// Package lying is a CRI runtime for tests that can reply with any bytes, as a compromised runtime
// could.
package lying

import (
	"net"
	"path"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	protobuf "google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Reply writes the answer to a call: it may send any number of messages, wait, or return a gRPC
// error.
type Reply func(send func(wire []byte) error, done <-chan struct{}) error

// Runtime answers each CRI method as configured by Answer.
type Runtime struct {
	mu      sync.Mutex
	replies map[string]Reply
	calls   sync.Map // of *atomic.Int64, by method
}

// New returns a runtime that reports its name and has nothing.
func New() *Runtime {
	r := &Runtime{replies: map[string]Reply{}}
	r.Answer("Version", Message(&runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "lying", RuntimeVersion: "1", RuntimeApiVersion: "v1"}))
	return r
}

// Answer sets the reply to a method, given without its service name; nil removes the reply.
func (r *Runtime) Answer(method string, reply Reply) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if reply == nil {
		delete(r.replies, method)
		return
	}
	r.replies[method] = reply
}

// Calls returns how often a method was called.
func (r *Runtime) Calls(method string) int64 {
	n, _ := r.calls.LoadOrStore(method, new(atomic.Int64))
	return n.(*atomic.Int64).Load()
}

// Wire replies with these bytes.
func Wire(wire []byte) Reply {
	return func(send func([]byte) error, _ <-chan struct{}) error { return send(wire) }
}

// Message replies with a message, as an honest runtime would.
func Message(m protobuf.Message) Reply {
	wire, err := protobuf.Marshal(m)
	if err != nil {
		return func(func([]byte) error, <-chan struct{}) error { return err }
	}
	return Wire(wire)
}

// Hang never replies.
func Hang(_ func([]byte) error, done <-chan struct{}) error {
	<-done
	return status.Error(codes.Canceled, "the caller canceled the call")
}

// Serve answers on a listener until stop is called.
func (r *Runtime) Serve(l net.Listener) (stop func()) {
	s := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{encoding.GetCodecV2(proto.Name)}), grpc.UnknownServiceHandler(r.handle),
		grpc.MaxSendMsgSize(1<<30), grpc.MaxRecvMsgSize(1<<30))
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	return func() { s.Stop(); <-served }
}

func (r *Runtime) handle(_ any, stream grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(stream)
	service, method := path.Split(full)
	n, _ := r.calls.LoadOrStore(method, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
	var request raw
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	r.mu.Lock()
	reply := r.replies[method]
	r.mu.Unlock()
	if reply == nil || !strings.HasPrefix(service, "/runtime.v1.") {
		return status.Error(codes.Unimplemented, full)
	}
	return reply(func(wire []byte) error { m := raw(wire); return stream.SendMsg(&m) }, stream.Context().Done())
}

// raw is a message in wire format.
type raw []byte

type rawCodec struct{ encoding.CodecV2 }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*raw))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*raw) = data.Materialize()
	return nil
}
