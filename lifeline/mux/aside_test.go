package mux

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/lifeline/pipe"
	"github.com/bowline-k8s/bowline/lifeline/pipe/pipetest"
	"github.com/bowline-k8s/bowline/lifeline/wire"
)

func datagram(n int, text string) wire.Datagram {
	f := flow(n)
	f.Protocol = wire.UDP
	return wire.Datagram{Flow: f, Payload: []byte(text)}
}

func TestDatagrams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Datagrams: 10})
		exit, helper, _ := w.connect(t)
		for _, text := range []string{"", "question", strings.Repeat("x", largestDatagram)} {
			for _, ends := range [][2]*Session{{helper, exit}, {exit, helper}} {
				d := datagram(1, text)
				testutil.Must(t, ends[0].Send(d))
				got, err := ends[1].Receive(t.Context())
				if err != nil || got.Flow != d.Flow || string(got.Payload) != text {
					t.Errorf("received %d bytes of %+v instead of %d: %v", len(got.Payload), got.Flow, len(text), err)
				}
			}
		}
		if err := helper.Send(datagram(1, strings.Repeat("x", largestDatagram+1))); err != ErrTooLarge {
			t.Errorf("a datagram that is too large: %v", err)
		}
		if err := helper.Send(wire.Datagram{}); err == nil {
			t.Error("a datagram without addresses is sent")
		}

		// What is not received in time is dropped, and never more is kept than is permitted.
		for i := range 20 {
			testutil.Must(t, helper.Send(datagram(i, "x")))
			synctest.Wait()
		}
		if got := exit.Stats().Dropped; got != 10 {
			t.Errorf("the receiving end dropped %d datagrams", got)
		}
		for i := range 10 {
			if d, err := exit.Receive(t.Context()); err != nil || d.Flow != datagram(i, "").Flow {
				t.Errorf("datagram %d is of %+v, %v", i, d.Flow, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if d, err := exit.Receive(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("received %+v, %v", d, err)
		}
	})
}

// TestStaleDatagrams: a question that waited for the link is not sent when its sender has asked again.
func TestStaleDatagrams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Datagrams: 10})
		exit, helper, _ := w.connect(t)
		testutil.Must(t, helper.Send(datagram(0, "")))
		_, err := exit.Receive(t.Context())
		testutil.Must(t, err)
		w.cut(errors.New("no link"))
		full := 0
		for i := range 20 {
			// The first ones fill the pipe.
			switch err := helper.Send(datagram(i, strings.Repeat("x", 40<<10))); err {
			case nil:
			case wire.ErrFull:
				full++
			default:
				t.Error(err)
			}
			synctest.Wait()
		}
		if full == 0 || full > 10 {
			t.Errorf("%d of 20 datagrams found the queue full", full)
		}
		time.Sleep(30 * time.Second)
		w.cut(nil)
		time.Sleep(3 * time.Second)
		testutil.Must(t, helper.Send(datagram(1000, "new")))
		for got := 0; ; got++ {
			d, err := exit.Receive(t.Context())
			testutil.Must(t, err)
			if string(d.Payload) == "new" {
				if got > 5 {
					t.Errorf("%d old datagrams came first", got)
				}
				break
			}
		}
	})
}

func table(n int) wire.Table {
	t := wire.Table{Cluster: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00::/108")},
		DNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}}
	for i := range n {
		address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80)
		t.Services = append(t.Services, wire.Service{Protocol: wire.TCP, Address: address, Affinity: time.Hour,
			Backends: []netip.AddrPort{netip.MustParseAddrPort("10.88.0.7:8080")}, LocalOnly: i%2 == 0})
	}
	return t
}

// TestTable: the newest table arrives, once.
func TestTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		exit, helper, _ := w.connect(t)
		for _, n := range []int{0, 1, 10_000, 3} {
			testutil.Must(t, exit.SetTable(table(5)))
			testutil.Must(t, exit.SetTable(table(n+1)))
			testutil.Must(t, exit.SetTable(table(n)))
			synctest.Wait()
			got, err := helper.Table(t.Context())
			if err != nil || !reflect.DeepEqual(got, table(n)) {
				t.Fatalf("the table has %d services instead of %d: %v", len(got.Services), n, err)
			}
			testutil.Must(t, exit.SetTable(table(n)))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := helper.Table(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the same table again: %v", err)
			}
			cancel()
		}
		if err := exit.SetTable(table(50_000)); !errors.Is(err, ErrTooLarge) {
			t.Errorf("a table that is too large: %v", err)
		}
		if err := helper.SetTable(table(1)); err != ErrRole {
			t.Errorf("a table of the helper: %v", err)
		}
		if _, err := exit.Table(t.Context()); err != ErrRole {
			t.Errorf("a table for the exit: %v", err)
		}
	})
}

// TestTableBesideDatagrams: datagrams pass a large table.
func TestTableBesideDatagrams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.plan = func(int) pipetest.Plan { return pipetest.Plan{Capacity: 1 << 10} }
		exit, helper, _ := w.connect(t)
		synctest.Wait()
		testutil.Must(t, exit.SetTable(table(10_000)))
		testutil.Must(t, exit.Send(datagram(1, "answer")))
		_, err := helper.Receive(t.Context())
		testutil.Must(t, err)
		helper.mu.Lock()
		done := helper.aside.news.newest != nil
		helper.mu.Unlock()
		if done {
			t.Error("the datagram came after the table")
		}
		_, err = helper.Table(t.Context())
		testutil.Must(t, err)
	})
}

func TestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		exit, helper, _ := w.connect(t)
		want := wire.Status{Ready: true, Rules: "nftables", Flows: 1, CacheHits: 2, CacheMisses: 3}
		testutil.Must(t, helper.Report(want))
		got, err := exit.Status(t.Context())
		if err != nil || got != want {
			t.Errorf("the status is %+v, %v", got, err)
		}
		testutil.Must(t, helper.Report(wire.Status{Message: strings.Repeat("é", 10_000)}))
		if got, err := exit.Status(t.Context()); err != nil || got.Message != strings.Repeat("é", 512) {
			t.Errorf("a long message arrives with %d bytes, %v", len(got.Message), err)
		}
		if err := exit.Report(want); err != ErrRole {
			t.Errorf("a status of the exit: %v", err)
		}
		// What a hostile helper says ends the session.
		helper.mu.Lock()
		helper.aside.draft, helper.aside.sent = []byte("{"), 0
		helper.aside.work.Send()
		helper.mu.Unlock()
		var violation *pipe.ProtocolError
		if _, err := exit.Status(t.Context()); !errors.As(err, &violation) || exit.Err() != err {
			t.Errorf("a status that is none: %v, and the session ended with %v", err, exit.Err())
		}
	})
}

func TestParseTableRefuses(t *testing.T) {
	for _, text := range []string{`{"Cluster":[""]}`, `{"Local":[""]}`, `{"DNS":[""]}`, `{"Services":[{}]}`, `[]`,
		`{"Services":[{"Address":"1.2.3.4:5","Backends":[""]}]}`, `{"Services":[{"Address":"1.2.3.4:5","Affinity":-1}]}`} {
		if got, err := parseTable([]byte(text)); err == nil {
			t.Errorf("%s is %s", text, fmt.Sprint(got))
		}
	}
}
