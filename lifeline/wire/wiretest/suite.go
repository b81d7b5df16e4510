package wiretest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/lifeline/wire"
)

var flow = wire.Flow{
	Protocol: wire.TCP, Src: netip.MustParseAddrPort("10.1.0.9:4000"), Dst: netip.MustParseAddrPort("10.96.0.1:443"),
}

// Suite runs what every implementation of wire.Session must do. pair returns both ends of a new session.
func Suite(t *testing.T, pair func(t *testing.T) (helper, exit wire.Session)) {
	for name, test := range map[string]func(*testing.T, wire.Session, wire.Session){
		"HalfClose": halfClose, "Reset": reset, "End": end, "Datagrams": datagrams, "Latest": newest,
	} {
		t.Run(name, func(t *testing.T) {
			helper, exit := pair(t)
			defer helper.Close()
			defer exit.Close()
			test(t, helper, exit)
		})
	}
}

func open(t *testing.T, helper, exit wire.Session) (opened, accepted wire.Stream) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	opened, err := helper.Open(ctx, flow)
	testutil.Must(t, err)
	accepted, err = exit.Accept(ctx)
	testutil.Must(t, err)
	if accepted.Flow() != flow {
		t.Errorf("accepted %v, want %v", accepted.Flow(), flow)
	}
	return opened, accepted
}

// halfClose: an end that has closed its direction still reads the other one, to its last byte.
func halfClose(t *testing.T, helper, exit wire.Session) {
	opened, accepted := open(t, helper, exit)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 64*1024)
	failed := make(chan error, 1)
	go func() {
		_, err := opened.Write(sent)
		failed <- errors.Join(err, opened.CloseWrite())
	}()
	got, err := io.ReadAll(accepted)
	testutil.Must(t, err)
	testutil.Must(t, <-failed)
	if !bytes.Equal(got, sent) {
		t.Errorf("%d bytes arrived of %d, or other ones", len(got), len(sent))
	}
	_, err = accepted.Write([]byte("answer"))
	testutil.Must(t, err)
	testutil.Must(t, accepted.Close())
	got, err = io.ReadAll(opened)
	testutil.Must(t, err)
	if string(got) != "answer" {
		t.Errorf("the answer is %q", got)
	}
}

func refusal(err error) wire.Refusal {
	var refused wire.Error
	errors.As(err, &refused)
	return refused.Refusal
}

// reset: the other end sees the refusal, when it reads and when it writes.
func reset(t *testing.T, helper, exit wire.Session) {
	opened, accepted := open(t, helper, exit)
	accepted.Reset(wire.Refused)
	if _, err := opened.Read(make([]byte, 1)); refusal(err) != wire.Refused {
		t.Errorf("Read: %v", err)
	}
	if _, err := opened.Write([]byte("x")); refusal(err) != wire.Refused {
		t.Errorf("Write: %v", err)
	}
}

// end: with the session, each stream and each call ends.
func end(t *testing.T, helper, exit wire.Session) {
	opened, _ := open(t, helper, exit)
	tables := make(chan error, 1)
	go func() {
		_, err := helper.Table(t.Context())
		tables <- err
	}()
	testutil.Must(t, exit.Close())
	<-helper.Done()
	if err := <-tables; err == nil || helper.Err() == nil {
		t.Errorf("Table ended with %v, the session with %v", err, helper.Err())
	}
	if _, err := opened.Read(make([]byte, 1)); refusal(err) != wire.Broken {
		t.Errorf("Read: %v", err)
	}
	if _, err := helper.Open(t.Context(), flow); err == nil {
		t.Error("Open succeeded")
	}
}

func datagrams(t *testing.T, helper, exit wire.Session) {
	sent := wire.Datagram{Flow: flow, Payload: []byte("question")}
	sent.Flow.Protocol = wire.UDP
	testutil.Must(t, helper.Send(sent))
	got, err := exit.Receive(t.Context())
	testutil.Must(t, err)
	if got.Flow != sent.Flow || string(got.Payload) != "question" {
		t.Errorf("received %v", got)
	}
	full := false
	for range 100_000 {
		if err := helper.Send(sent); errors.Is(err, wire.ErrFull) {
			full = true
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if !full {
		t.Error("the queue has no bound")
	}
}

// newest: of the tables and statuses that were sent, the last one arrives, and none twice in a row.
func newest(t *testing.T, helper, exit wire.Session) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	last := netip.MustParseAddr("10.96.0.10")
	for range 2 {
		testutil.Must(t, exit.SetTable(wire.Table{}))
		testutil.Must(t, exit.SetTable(wire.Table{DNS: []netip.Addr{last}}))
	}
	for {
		table, err := helper.Table(ctx)
		testutil.Must(t, err)
		if len(table.DNS) == 1 {
			break
		}
	}
	testutil.Must(t, helper.Report(wire.Status{Ready: true, Flows: 3}))
	status, err := exit.Status(ctx)
	testutil.Must(t, err)
	if !status.Ready || status.Flows != 3 {
		t.Errorf("the status is %+v", status)
	}
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	testutil.Must(t, helper.Report(status))
	if again, err := exit.Status(short); err == nil {
		t.Errorf("the same status came again: %+v", again)
	}
}
