package cri

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"strings"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/bowline-k8s/bowline/host/budget"
)

const (
	// maxOutput limits what a command of ExecSync may print, in bytes. A probe or a hook that
	// prints more has failed: that is the pod's fault, not the host's.
	maxOutput = 256 << 10
	// maxHeaders limits the headers of a reply, and its trailers with the text of an error. gRPC
	// keeps them until the call ends, for every open call.
	maxHeaders = 16 << 10
)

// guard is the codec of one call. It checks the size of a reply on the wire before decoding it: an
// item of two bytes on the wire takes more than a hundred in memory.
type guard struct {
	encoding.CodecV2
	account *budget.Account
	decode  chan struct{} // capacity one: bulky replies are decoded one at a time
	method  method
	seen    bool  // a reply passed gRPC's size limit
	err     error // why the reply was refused
}

func (c *Client) guard(m method) *guard {
	return &guard{CodecV2: encoding.GetCodecV2(grpcproto.Name), account: c.config.Budget, decode: c.turns.decode, method: m}
}

// Name is empty: gRPC would add it to the content type, and CRI-O closes a connection whose content
// type is not exactly application/grpc.
func (g *guard) Name() string { return "" }

func (g *guard) options() []grpc.CallOption {
	return []grpc.CallOption{grpc.ForceCodecV2(g), grpc.MaxCallRecvMsgSize(int(g.limit()))}
}

func (g *guard) limit() int64 {
	if g.method.output {
		return maxOutput
	}
	return g.account.Limit(g.method.size)
}

func (g *guard) what() string { return "the reply to " + g.method.name }

// Unmarshal decodes a reply if it is within the budget.
func (g *guard) Unmarshal(data mem.BufferSlice, v any) (err error) {
	g.seen = true
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("read %s: %T is no message of protobuf", g.what(), v)
	}
	pool := mem.DefaultBufferPool()
	if data.Len() > bulky {
		g.decode <- struct{}{}
		defer func() { <-g.decode }()
		if data.Len() > huge {
			makeRoom()
		}
		pool = mem.NopBufferPool{} // a pool would keep megabytes that no later reply needs
	}
	buf := data.MaterializeToBuffer(pool)
	defer buf.Free()
	// gRPC frees the buffers it read after Unmarshal returns. Free them now, before the message
	// takes memory too.
	for i := range data {
		data[i].Free()
		data[i] = mem.SliceBuffer(nil)
	}
	err = budget.ErrPanicked // stays if a panic is recovered
	defer g.account.Recover("read " + g.what())
	if err = g.check(buf.ReadOnlyData(), m); err != nil {
		g.err = err
		return err
	}
	return proto.Unmarshal(buf.ReadOnlyData(), m)
}

const (
	// huge is the size of a reply, in bytes, that no ordinary node with 110 pods sends: its lists have
	// some hundred KiB.
	huge = 2 << 20
	// roomy is the live heap, in bytes, that needs no collection by makeRoom: the half by which it may
	// grow has room for the lists of several hosts, and collecting it would cost the other hosts CPU.
	roomy = 128 << 20
)

// room limits how often makeRoom collects, because a host may send huge replies all the time. The lists of
// sandboxes and of containers come together.
var room = rate.NewLimiter(2, 4)

// makeRoom collects the garbage of earlier huge replies before the next one takes as much memory again.
// The collector alone begins only when the heap has grown by half.
func makeRoom() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if live[0].Value.Uint64() < roomy && room.Allow() {
		runtime.GC()
	}
}

func (g *guard) check(wire []byte, m proto.Message) error {
	if !g.method.output {
		if err := g.count(g.method.size, int64(len(wire))); err != nil {
			return err
		}
	}
	c := cost{memory: int64(len(wire)), limit: g.account.Limit(budget.Memory)}
	c.add(wire, m.ProtoReflect().Descriptor(), 0)
	if g.method.size != budget.ReplyBytes {
		c.memory *= smallShare
	}
	if err := g.count(budget.Items, c.items); err != nil {
		return err
	}
	return g.count(budget.Memory, c.memory)
}

// count compares n with a budget. A reply that is inflatable is refused beyond it; any other one ends
// the driver.
func (g *guard) count(k budget.Kind, n int64) error {
	if g.method.inflatable && n > g.account.Limit(k) {
		return g.exceeded(k)
	}
	return g.account.Check(k, n, g.what())
}

func (g *guard) exceeded(k budget.Kind) error {
	return &budget.ExceededError{Kind: k, Limit: g.account.Limit(k), What: g.what()}
}

// refused returns an error if a reply exceeded the budget, or else nil. If a reply is too large,
// gRPC refuses it before the codec sees it, here or at the sender.
func (g *guard) refused(err error) error {
	if g.err != nil {
		return g.err
	}
	switch {
	case !g.method.observed || !g.tooLarge(err):
		return nil
	case g.method.inflatable:
		return g.exceeded(g.method.size)
	default:
		return g.account.Exceed(g.method.size, g.what())
	}
}

func (g *guard) tooLarge(err error) bool {
	return !g.seen && status.Code(err) == codes.ResourceExhausted
}

// explain describes the error of a command that prints too much, and of an error text that is too
// long: an honest runtime then breaks off its reply, and the client refuses one that arrives. gRPC
// shows either only in the text of the status.
func (g *guard) explain(err error) error {
	if g.method.output && g.tooLarge(err) {
		return status.Errorf(codes.ResourceExhausted, "the command printed more than %d bytes", maxOutput)
	}
	if s, ok := status.FromError(err); ok && s.Code() == codes.Internal &&
		(strings.Contains(s.Message(), "RST_STREAM") || strings.Contains(s.Message(), "header list size")) {
		return status.Errorf(codes.Internal, "the runtime's answer could not be read, as if its error were longer than %d bytes: %s", maxHeaders, s.Message())
	}
	return err
}

// cost is the approximate memory of a decoded message, and the number of items that it lists.
type cost struct {
	items  int64 // in lists of the top-level message
	memory int64
	limit  int64 // of memory: counting stops beyond it
}

// smallShare is the factor by which replies other than full lists may use less memory.
const smallShare = 8

// Memory that values take in addition to their bytes on the wire.
const (
	ofMessage = 192 // a message and its pointer, or a map entry
	ofString  = 48  // in a list, which grows by doubling
	ofNumber  = 16
)

// add counts a message; it leaves malformed data for Unmarshal to refuse.
func (c *cost) add(wire []byte, d protoreflect.MessageDescriptor, depth int) {
	for len(wire) > 0 && c.memory <= c.limit {
		number, kind, n := protowire.ConsumeTag(wire)
		if n < 0 {
			return
		}
		wire = wire[n:]
		field := d.Fields().ByNumber(number)
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, wire); n < 0 {
				return
			}
			if field != nil && field.IsList() {
				c.memory += ofNumber
			}
			wire = wire[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(wire)
		if n < 0 {
			return
		}
		wire = wire[n:]
		switch {
		case field == nil: // an unknown field is kept as bytes
		case field.Message() != nil:
			c.memory += ofMessage
			if depth == 0 && (field.IsList() || field.IsMap()) {
				c.items++
			}
			c.add(value, field.Message(), depth+1)
		case field.IsList() && (field.Kind() == protoreflect.StringKind || field.Kind() == protoreflect.BytesKind):
			c.memory += ofString
		case field.IsList():
			c.memory += ofNumber * int64(len(value))
		}
	}
}
