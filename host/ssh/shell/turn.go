package shell

import (
	"context"
	"errors"
	"sync"
)

// bulky is the size in bytes above which an output waits for its turn: Bowline holds and processes
// only one of the outputs that may exceed DefaultOutput at a time.
const bulky = 64 << 10

// turn is the turn of one request.
type turn struct {
	slot chan struct{} // of the pool
	ctx  context.Context

	mu         sync.Mutex
	held, over bool
}

// take waits for the turn, unless the request has it already.
func (t *turn) take() error {
	t.mu.Lock()
	held := t.held
	t.mu.Unlock()
	if held {
		return nil
	}
	select {
	case t.slot <- struct{}{}:
	case <-t.ctx.Done():
		return t.ctx.Err()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		<-t.slot
		return errors.New("shell: the request is over")
	}
	t.held = true
	return nil
}

// release ends the turn, also for a take that is still waiting.
func (t *turn) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held && !t.over {
		<-t.slot
	}
	t.over = true
}
