package shell

import (
	"bytes"
	"errors"
	"testing"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestWhatCameBeforeTheRequestCounts: a shell that prints without end has one budget, whenever a
// request begins.
func TestWhatCameBeforeTheRequestCounts(t *testing.T) {
	const limit, chunk = 1 << 20, 32 << 10
	account := budget.New(budget.Limits{OutputBytes: limit})
	s := &stream{name: "output", budget: account}
	printed := int64(0)
	text := bytes.Repeat([]byte("hello\n"), chunk/6)
	take := func() error {
		printed += int64(len(text))
		return s.take(text)
	}
	for printed < limit*3/4 {
		testutil.Must(t, take())
	}
	s.attach(&collector{nonce: []byte("nonce"), max: 100, budget: account}, make(chan error, 1))
	var err error
	for err == nil && printed < 3*limit {
		err = take()
	}
	if much := (*budget.ExceededError)(nil); !errors.As(err, &much) || printed > limit+2*chunk {
		t.Errorf("%d bytes were read, want at most %d: %v", printed, limit+2*chunk, err)
	}
}
