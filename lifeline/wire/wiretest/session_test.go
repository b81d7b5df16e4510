package wiretest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/lifeline/wire"
)

func TestSuite(t *testing.T) {
	Suite(t, func(*testing.T) (wire.Session, wire.Session) { return Pair() })
}

// TestCut: what was sent during a cut arrives after it.
func TestCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		helper, exit := Pair()
		defer helper.Close()
		opened, accepted := open(t, helper, exit)
		helper.Cut()
		_, err := opened.Write([]byte("x"))
		testutil.Must(t, err)
		testutil.Must(t, helper.Send(wire.Datagram{}))
		begin := time.Now()
		time.AfterFunc(time.Minute, helper.Join)
		_, err = accepted.Read(make([]byte, 1))
		testutil.Must(t, err)
		_, err = exit.Receive(t.Context())
		testutil.Must(t, err)
		if took := time.Since(begin); took != time.Minute {
			t.Errorf("arrived after %s", took)
		}
	})
}
